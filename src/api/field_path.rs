//! The paths of fields, as errors show them: `spec.containers[0].env[DEBUG]`. Who writes an object chooses the names in it, and
//! each path below a name repeats it, so what is long is cut.

/// How much of a name, and of a path before its last step, is shown, in bytes.
const NAME: usize = 253;
const PATH: usize = 1024;

/// The path of a field.
pub fn field(path: &str, name: &str) -> String {
    if path.is_empty() { head(name, NAME).to_owned() } else { format!("{}.{}", head(path, PATH), head(name, NAME)) }
}

/// The path of a map's entry.
pub fn key(path: &str, key: &str) -> String {
    format!("{}[{}]", head(path, PATH), head(key, NAME))
}

/// The path of a list's item.
pub fn index(path: &str, index: usize) -> String {
    format!("{}[{index}]", head(path, PATH))
}

/// The path of what an element as `.name` or `[name="a"]` leads to.
pub fn element(path: &str, element: &str) -> String {
    format!("{}{}", head(path, PATH), head(element, NAME))
}

/// The begin of a text, of at most so many bytes.
pub fn head(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
