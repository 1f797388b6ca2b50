//! Field paths for errors: `spec.containers[0].env[DEBUG]`. Authors of objects choose names, and each path below a name repeats it,
//! so long ones are truncated.

/// The length to which names, and paths before their last step, are truncated.
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

/// The path below an element such as `.name` or `[name="a"]`.
pub fn element(path: &str, element: &str) -> String {
    format!("{}{}", head(path, PATH), head(element, NAME))
}

/// The beginning of a string, up to this many bytes.
pub fn head(text: &str, most: usize) -> &str {
    let mut end = most.min(text.len());
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
