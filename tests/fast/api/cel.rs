//! Expressions: their results, what is rejected, and that none runs for long.

use podwright::api::cel::{Budget, Env, Type, Value, compile};
use serde_json::json;

fn evaluate(source: &str) -> Result<Value, String> {
    let env = Env::new([("o", Type::Dyn), ("n", Type::Int)]);
    let program = compile(source, &env).map_err(|why| why.to_string())?;
    let object = Value::from_json(&json!({
        "name": "web", "size": 3, "half": 0.5, "on": true, "nothing": null, "tags": ["a", "b", "c"],
        "labels": {"app": "x", "tier": "y"}, "ports": [{"n": 80, "p": "TCP"}, {"n": 443, "p": "TCP"}],
    }));
    program.evaluate(&[("o", object), ("n", Value::Int(7))], &mut Budget::PER_CALL.clone()).map_err(|e| e.to_string())
}

/// Each of these is true.
const TRUE: &[&str] = &[
    // arithmetic and comparison
    "1 + 2 * 3 == 7 && 7 / 2 == 3 && -7 % 3 == -1 && 2.5 * 2.0 == 5.0 && 5u - 2u == 3u",
    "dyn(1) == 1.0 && dyn(1u) == 1 && 1 < 1.5 && 2u > 1.5 && o.half < 1 && dyn('a') != 1",
    "'a' < 'b' && 'a' + 'b' == 'ab' && b'ab' == bytes('ab') && [1] + [2] == [1, 2]",
    "dyn({'a': 1, 'b': [2]}) == {'b': [2.0], 'a': 1u} && {1: 'x'}[1] == 'x'",
    // fields and presence
    "o.size == 3 && has(o.size) && !has(o.missing) && o['name'] == 'web' && o.tags[1] == 'b' && o.nothing == null",
    "'a' in o.tags && 'app' in o.labels && !('z' in o.tags)",
    // an operand that decides is enough
    "o.missing == 1 || true",
    "true || o.missing == 1",
    "!(false && o.missing == 1)",
    "o.on ? true : o.missing",
    // macros
    "o.tags.all(t, t.size() == 1) && o.ports.exists(p, p.n == 443) && o.ports.exists_one(p, p.n == 80)",
    "o.ports.map(p, p.n) == [80, 443] && o.ports.filter(p, p.n > 100).size() == 1 && o.ports.map(p, p.n > 100, p.n) == [443]",
    "o.labels.all(k, k.size() > 2) && o.labels.exists(k, v, v == 'y') && o.tags.all(i, t, i < 3)",
    "o.tags.transformList(i, t, t + string(i)) == ['a0', 'b1', 'c2'] && o.labels.transformMap(k, v, v + k)['app'] == 'xapp'",
    "[1, 2, 3].exists(i, i / (i - 2) == 3)",
    "o.tags.map(t, o.ports.map(p, t + p.p)).size() == 3",
    // strings
    "'hello'.substring(1, 3) == 'el' && 'a,b'.split(',') == ['a', 'b'] && ['a', 'b'].join('-') == 'a-b' && 'Ab'.lowerAscii() == 'ab'",
    "'héllo'.size() == 5 && 'héllo'.charAt(1) == 'é' && 'abcabc'.indexOf('c', 3) == 5 && 'abcabc'.lastIndexOf('b') == 4",
    "' x '.trim() == 'x' && 'aXa'.replace('a', 'b', 1) == 'bXa' && 'abc'.reverse() == 'cba' && 'a-b-c'.split('-', 2) == ['a', 'b-c']",
    "'abc-12'.matches('^[a-z]+-[0-9]+$') && 'abc 123'.find('[0-9]+') == '123' && '1 2 3'.findAll('[0-9]', 2) == ['1', '2']",
    "'%s is %d, %.2f, %x'.format(['a', 3, 1.5, 255]) == 'a is 3, 1.50, ff' && '%s'.format([[1, 'a']]) == '[1, a]'",
    // conversions
    "int('12') == 12 && int(3.9) == 3 && string(1.5) == '1.5' && double('2') == 2.0 && uint(3) == 3u && bool('true')",
    "type(1) == int && type('a') == string && type(o.tags) == list && type(null) == null_type && string(b'a') == 'a'",
    // times
    "timestamp('2024-02-29T12:30:00Z').getFullYear() == 2024 && timestamp('2024-02-29T12:30:00Z').getMonth() == 1",
    "timestamp('2024-01-01T00:00:00Z') + duration('90m') == timestamp('2024-01-01T01:30:00Z') && duration('1h').getMinutes() == 60",
    "timestamp('2024-01-01T23:00:00Z').getHours('+02:00') == 1 && string(duration('1.5s')) == '1.5s'",
    // lists and sets
    "[1, 2, 2].isSorted() && [1, 2, 3].sum() == 6 && [3, 1].min() == 1 && ['a', 'c'].max() == 'c' && [1, 2].indexOf(2) == 1",
    "sets.contains([1, 2, 3], [3, 1]) && sets.equivalent([1, 1, 2], [2, 1]) && sets.intersects([1], [1, 2])",
    // quantities, addresses, URLs, versions, formats
    "quantity('1Gi').isGreaterThan(quantity('1G')) && quantity('500m').add(quantity('1500m')).asInteger() == 2 && !isQuantity('x')",
    "quantity('2').compareTo(quantity('2000m')) == 0 && quantity('-1').sign() == -1 && quantity('50k').sub(1).isLessThan(quantity('50k'))",
    "ip('10.0.0.1').family() == 4 && isIP('::1') && !isIP('10.0.0.256') && ip('127.0.0.1').isLoopback() && ip.isCanonical('::1')",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR(cidr('10.2.0.0/16')) && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
    "url('https://u@example.com:8080/a%20b?x=1&x=2').getHostname() == 'example.com' && url('https://e.com:80/').getPort() == '80' && !isURL('a b')",
    "url('https://e.com/p?x=1&x=2').getQuery()['x'] == ['1', '2'] && url('/just/path').getEscapedPath() == '/just/path'",
    "semver('1.2.3').isLessThan(semver('1.10.0')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0')) && !isSemver('v1') && semver('v1', true).major() == 1",
    "semver('1.0.0-2').isLessThan(semver('1.0.0-10')) && semver('1.0.0-10').isLessThan(semver('1.0.0-a')) && semver('1.0.0+a') == semver('1.0.0+b')",
    "semver('v01.002', true) == semver('1.2.0') && semver('1.2.03-rc.1', true) == semver('1.2.3-rc.1') && semver('1.00.0', true).minor() == 0",
    "!isSemver('1.2-rc.1', true) && !isSemver('1+b', true) && !isSemver('1.2.3-01') && !isSemver('1.2.3-99999999999999999999') && !isSemver('1.02.3')",
    "!format.dns1123Label().validate('my-name').hasValue() && format.named('dns1123Label').value().validate('My').hasValue()",
    // optionals
    "o.?missing.orValue('none') == 'none' && o.?name.hasValue() && o.tags[?9].orValue('z') == 'z' && optional.of(1).value() == 1",
    "o.?labels.?app.optMap(a, a + '!').orValue('') == 'x!' && [?o.?missing, 'a'] == ['a'] && !has({?'a': o.?missing}.a)",
    "optional.none().or(optional.of(2)).value() == 2 && !optional.ofNonZeroValue('').hasValue()",
    "n + 1 == 8 && has(o.labels.app) && o.?labels.app.hasValue()",
];

#[test]
fn expressions_hold() {
    for source in TRUE {
        assert_eq!(evaluate(source), Ok(Value::Bool(true)), "{source}");
    }
}

#[test]
fn errors_are_in_upstreams_words() {
    for (source, why) in [
        ("o.missing == 1", "no such key: missing"),
        ("o.tags[5] == 'x'", "index out of bounds: 5"),
        ("1 / (o.size - 3) == 1", "division by zero"),
        ("9223372036854775807 + n == 1", "integer overflow"),
        ("o.name + 1 == 2", "no such overload"),
        ("o.tags.all(t, t.nope == 1)", "no such key: nope"),
        ("optional.none().value()", "optional.none() dereference"),
        ("o.name.matches('(')", "error parsing regexp"),
        ("int('x') == 1", "type conversion error from 'string' to 'int'"),
        ("{'a': 1, 'a': 2}.size() == 1", "insert failed: key a already exists"),
        // Expressions that do not compile.
        ("o.size ==", "ERROR: <input>:1:10: Syntax error"),
        ("x == 1", "ERROR: <input>:1:1: undeclared reference to 'x' (in container '')"),
        ("n == 1 &&\n  nope(n)", "ERROR: <input>:2:3: undeclared reference to 'nope' (in container '')"),
        ("n == 'a'", "found no matching overload for '_==_' applied to '(int, string)'"),
        ("n + 'a' == 'b'", "found no matching overload for '_+_' applied to '(int, string)'"),
        ("n && true", "found no matching overload for '_&&_' applied to '(int)'"),
        ("n.startsWith('a')", "found no matching overload for 'startsWith' applied to 'int.(string)'"),
        ("'a'.startsWith(n)", "found no matching overload for 'startsWith' applied to 'string.(int)'"),
        ("n.exists(x, true)", "expression of type 'int' cannot be range of a comprehension"),
        ("Pod{a: 1}", "undeclared reference to 'Pod'"),
        ("o.tags.map(1, 2)", "argument must be a simple name"),
    ] {
        let refused = evaluate(source).expect_err(source);
        assert!(refused.contains(why), "{source}: {refused}");
    }
}

/// Users who may write an expression cannot stop the server with it.
#[test]
fn no_expression_runs_for_long_or_deep() {
    let ten = "[0,1,2,3,4,5,6,7,8,9]";
    let mut nested = "true".to_owned();
    for i in 0..9 {
        nested = format!("{ten}.all(x{i}, {nested})");
    }
    let growing = format!(
        "{ten}.map(a, {ten}.map(b, {ten}.map(c, 'xxxxxxxxxx'.replace('x', 'yyyyyyyyyyyyyyyyyyyy').replace('y', 'zzzzzzzzzzzzzzzzzzzz').replace('z', 'wwwwwwwwwwwwwwwwwwwwwwwwwwwwwwwww')))).size() == 1"
    );
    let started = std::time::Instant::now();
    for source in [&nested, &growing] {
        let refused = evaluate(source).expect_err("it is too much");
        assert_eq!(refused, "operation cancelled: actual cost limit exceeded");
    }
    assert!(started.elapsed().as_secs() < 20, "{:?}", started.elapsed());
    for deep in [
        "(".repeat(5000),
        format!("{}1{}", "[".repeat(200), "]".repeat(200)),
        format!("1{}", " + 1".repeat(5000)),
        format!("{}true", "!".repeat(5001)),
        format!("o{}", ".a".repeat(5000)),
        format!("{}n", "-".repeat(5001)),
        format!("o{}", "[0]".repeat(300_000)),
        format!("n {}", "+ n ".repeat(250)),
    ] {
        // Only termination matters here, not the result.
        let _ = evaluate(&deep);
    }
}

#[test]
fn a_budget_is_shared_by_evaluations() {
    let program = compile("[1, 2, 3].all(x, x > 0)", &Env::default()).unwrap();
    let mut budget = Budget::PER_OBJECT.clone();
    let mut evaluations = 0u64;
    while budget.spend(|own| program.holds(&[], own)).is_ok_and(|holds| holds) {
        evaluations += 1;
    }
    assert!(budget.is_spent());
    assert!((200_000..2_000_000).contains(&evaluations), "{evaluations}");
}

#[test]
fn a_program_knows_its_variables_and_its_type() {
    let env = Env::new([("self", Type::Dyn), ("oldSelf", Type::Dyn)]);
    let program = compile("self == oldSelf", &env).unwrap();
    assert!(program.uses("oldSelf") && matches!(program.result, Type::Bool));
    assert!(!compile("[1].all(oldSelf, oldSelf > 0)", &env).unwrap().uses("oldSelf"));
    assert!(matches!(compile("'a' + string(self)", &env).unwrap().result, Type::String));
}

/// Values are shared: forty steps make a tree of 2^40 parts, which must never be traversed. (Four million here, so that a wrongful
/// traversal still terminates.)
#[test]
fn what_goes_through_a_value_is_paid_for_by_its_parts() {
    let tree = |depth: usize| format!("[[1]]{}", ".map(x, [x, x])".repeat(depth));
    let large = tree(22);
    for source in [
        format!("{large} == {large}"),
        format!("{large} in [{large}]"),
        format!("[{large}].indexOf({large}) == 0"),
        format!("[{large}].lastIndexOf({large}) == 0"),
        format!("sets.contains([{large}], [{large}])"),
        format!("sets.intersects([{large}], [{large}])"),
        format!("sets.equivalent([{large}], [{large}])"),
        format!("{{'a': {large}}} == {{'a': {large}}}"),
        format!("optional.of({large}) == optional.of({large})"),
        format!("[optional.of({large})] == [optional.of({large})]"),
        format!("'%s'.format([{large}]) == ''"),
    ] {
        let refused = evaluate(&source);
        assert_eq!(refused, Err("operation cancelled: actual cost limit exceeded".to_owned()), "{source}");
    }
    let small = tree(6);
    assert_eq!(evaluate(&format!("{small} == {small} && {small} in [1, {small}]")), Ok(Value::Bool(true)));
}

/// Non-string keys are looked up by hash, not by a scan.
#[test]
fn a_map_of_many_numbers_is_made_at_once() {
    let program =
        compile("l.transformMap(i, v, v).size() == 60000", &Env::new([("l", Type::list(Type::Int))])).unwrap();
    let list = Value::list((0..60_000).map(Value::Int).collect());
    let started = std::time::Instant::now();
    assert_eq!(program.evaluate(&[("l", list)], &mut Budget::PER_CALL.clone()), Ok(Value::Bool(true)));
    assert!(started.elapsed().as_secs() < 10, "{:?}", started.elapsed());
    assert_eq!(evaluate("dyn({1: 'a', 2: 'c'})[2u] == 'c' && dyn({true: 'b'})[true] == 'b'"), Ok(Value::Bool(true)));
}

/// Each pattern is different, short to write and large to compile.
#[test]
fn regular_expressions_that_are_made_as_it_runs_are_paid_for() {
    let env = Env::new([("all", Type::list(Type::Int)), ("y", Type::String)]);
    let run = |source: &str, items: i64, y: &str| {
        let all = Value::list((0..items).map(Value::Int).collect());
        let begun = std::time::Instant::now();
        let program = compile(source, &env).unwrap();
        let mut budget = Budget::PER_CALL.clone();
        budget.charge(800_000).unwrap();
        let outcome = program.evaluate(&[("all", all), ("y", Value::string(y))], &mut budget);
        assert!(begun.elapsed().as_secs() < 60, "{source} took {:?}", begun.elapsed());
        outcome
    };
    for source in [
        "all.all(i, !'a'.matches(string(i) + y))",
        "all.all(i, 'a'.find(string(i) + y) == '')",
        "all.all(i, 'a'.findAll(string(i) + y).size() == 0)",
    ] {
        let refused = run(source, 2_000, r"\pL{8}").unwrap_err();
        assert!(refused.exhausted, "{source}: {refused}");
        assert_eq!(run(source, 20, "x+"), Ok(Value::Bool(true)), "a few cost little");
    }
    // Patterns compiled once and constant patterns cost as much as upstream's.
    assert_eq!(run("all.all(i, !'a'.matches(y))", 5_000, "^[b-z]+$"), Ok(Value::Bool(true)));
    assert_eq!(run(r"all.all(i, !'a'.matches('\\d\\pL{8}'))", 5_000, ""), Ok(Value::Bool(true)));
}

/// One unit per ten characters read, for each operand that may be a string.
#[test]
fn what_reads_a_text_is_paid_for_by_its_length() {
    let env = Env::new([("long", Type::String), ("han", Type::String), ("needle", Type::String), ("o", Type::Dyn)]);
    let (long, han) = ("a".repeat(200_000), "\u{6f22}".repeat(200_000));
    let object = Value::map([(std::sync::Arc::from(long.as_str()), Value::Int(1))]);
    let cost = |source: &str| {
        let program = compile(source, &env).unwrap_or_else(|why| panic!("{source}: {why}"));
        let needle = Value::string("b".repeat(40));
        let (long, han) = (Value::string(long.as_str()), Value::string(han.as_str()));
        let values = [("long", long), ("han", han), ("needle", needle), ("o", object.clone())];
        // The cost applies whether or not the result is used.
        let costs = |most: u64| {
            let mut budget = Budget::PER_OBJECT.clone();
            budget.charge(10_000_000 - most).unwrap();
            program.evaluate(&values, &mut budget).is_err_and(|why| why.exhausted)
        };
        let (mut least, mut most) = (0_u64, 10_000_000);
        while least < most {
            let middle = (least + most) / 2;
            if costs(middle) { least = middle + 1 } else { most = middle }
        }
        least
    };
    for (source, least) in [
        ("long.contains(needle)", 80_000),
        ("needle.contains(long)", 80_000),
        ("needle.startsWith(long)", 20_000),
        // Characters, not bytes.
        ("needle.startsWith(han)", 20_000),
        ("han.contains(needle)", 80_000),
        ("isIP(han)", 20_000),
        // Only the length is read here.
        ("long.size() == 1", 0),
        ("size(han) == 1", 0),
        ("needle.endsWith(long)", 20_000),
        ("long.matches('a+b')", 20_000),
        ("needle.indexOf(long) == 0", 20_000),
        ("long.lastIndexOf(needle) == 0", 20_000),
        ("long.replace('x', 'y') == 'a'", 40_000),
        ("needle.replace(long, 'y') == 'a'", 20_000),
        ("long.split('x').size() == 1", 40_000),
        ("needle.split(long).size() == 1", 20_000),
        ("long.trim() == 'a'", 20_000),
        ("int(long) == 1", 20_000),
        ("double(long) == 1.0", 20_000),
        ("bool(long)", 20_000),
        ("quantity(long) == quantity('1')", 20_000),
        ("isQuantity(long)", 20_000),
        ("isIP(long)", 20_000),
        ("ip.isCanonical(long)", 40_000),
        ("cidr('10.0.0.0/8').containsIP(long)", 20_000),
        ("isSemver(long)", 20_000),
        ("timestamp(long) == timestamp(0)", 20_000),
        ("duration(long) == duration('1s')", 20_000),
        ("timestamp(0).getHours(long) == 1", 20_000),
        ("format.named(long).hasValue()", 20_000),
        ("format.uuid().validate(long).hasValue()", 640_000),
        ("url('/' + long) == url('/' + long)", 100_000),
        ("url('/' + long).getEscapedPath() == ''", 60_000),
        ("url('/a?' + long).getQuery().size() == 1", 80_000),
        ("long == long", 20_000),
        ("long < long", 20_000),
        ("han == han", 20_000),
        ("han < han", 20_000),
        ("han == long", 20_000),
        ("long + han == ''", 40_000),
        // Nothing of it is read.
        ("han == 'a'", 0),
        ("long in [long]", 20_000),
        ("han in [han]", 20_000),
        ("[han, han].join('') == ''", 40_000),
        ("[han].join(han) == ''", 60_000),
        ("'b'.replace('b', han) == ''", 40_000),
        ("strings.quote(han) == ''", 40_000),
        // List traversals cost by bytes, as upstream: `traversalCost`.
        ("[han].isSorted()", 60_000),
        ("[han].indexOf('a') == 0", 60_000),
        ("[han].max() == ''", 60_000),
        ("o == o", 20_000),
        ("o[long] == 1", 20_000),
        ("o[?long].hasValue()", 20_000),
        ("long in o", 20_000),
        ("{long: 1}.size() == 1", 20_000),
        ("[1].transformMapEntry(i, v, {long: v}).size() == 1", 40_000),
    ] {
        let cost = cost(source);
        assert!((least..least + 20_000).contains(&cost), "{source} costs {cost}, not {least}");
    }
    assert!(cost("'a'.contains('b') && 'abc'.startsWith('ab') && o.?short.hasValue()") < 20);
}

#[test]
fn errors_quote_no_more_than_the_beginning_of_a_long_text() {
    let env = Env::new([("long", Type::String), ("o", Type::Dyn)]);
    let long = "ä".repeat(100_000);
    for source in [
        "int(long) == 1",
        "o[long] == 1",
        "url(long).getHost() == ''",
        "ip(long).family() == 4",
        "timestamp(0).getHours(long) == 1",
        "semver(long).major() == 1",
        "'a'.matches('(' + long)",
        "[1, 2].transformMapEntry(i, v, {long: v}).size() == 1",
    ] {
        let program = compile(source, &env).unwrap();
        let values = [("long", Value::string(long.as_str())), ("o", Value::from_json(&json!({})))];
        let refused = program.evaluate(&values, &mut Budget::PER_OBJECT.clone()).expect_err(source);
        assert!(refused.message.len() < 1100 && !refused.exhausted, "{source}: {} bytes", refused.message.len());
    }
    let refused = compile(&format!("'{}' == 1", "a".repeat(20_000)), &env).unwrap_err().to_string();
    assert!(refused.contains("found no matching overload") && refused.len() < 2048, "{} bytes", refused.len());
}
