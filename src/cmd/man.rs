//! `man`: the manual pages, one for each command, made of the same definition as `--help`.

use std::path::{Path, PathBuf};

use anyhow::Context;

#[derive(clap::Args)]
pub struct Args {
    /// The directory to write podwright.1, podwright-get.1 and the others to
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Writes the pages of `command`.
pub fn write(args: &Args, command: clap::Command) -> anyhow::Result<()> {
    pages(&args.folder, command).with_context(|| format!("writing manual pages to {}", args.folder.display()))
}

fn pages(folder: &Path, command: clap::Command) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    clap_mangen::generate_to(command, folder)
}

#[cfg(test)]
mod tests {
    use clap::{Arg, Command};

    use super::*;

    #[test]
    fn each_command_that_help_names_has_a_page() {
        let folder = tempfile::tempdir().unwrap();
        let get = Command::new("get").about("Display resources").arg(Arg::new("all").long("all").help("All of them"));
        let of = Command::new("image").subcommand(Command::new("list")).subcommand(Command::new("old").hide(true));
        let command = Command::new("tool").version("1.2").subcommands([get, of, Command::new("man").hide(true)]);
        pages(&folder.path().join("man1"), command).unwrap();
        let mut names: Vec<String> = std::fs::read_dir(folder.path().join("man1"))
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        assert_eq!(names, ["tool-get.1", "tool-image-list.1", "tool-image.1", "tool.1"]);
        let page = std::fs::read_to_string(folder.path().join("man1/tool-get.1")).unwrap();
        for part in [".SH NAME", "Display resources", "All of them"] {
            assert!(page.contains(part), "{part}: {page}");
        }
    }
}
