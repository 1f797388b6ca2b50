//! Pages: those with a limit end by their bytes as well.

use std::sync::Arc;

use podwright::store::{Memory, PAGE_BYTES, Range, Sqlite, Store};

use super::{committed, put};

#[tokio::test]
async fn a_page_with_a_limit_has_so_many_bytes_and_all_pages_have_everything() {
    let folder = tempfile::tempdir().unwrap();
    let sqlite = Sqlite::open(&folder.path().join("store.db")).unwrap();
    for store in [Arc::new(Memory::new()) as Arc<dyn Store>, Arc::new(sqlite)] {
        let mut at = 0;
        for i in 0..10 {
            at = committed(&*store, put(&format!("/a/{i}"), vec![b'x'; PAGE_BYTES / 4 + 1])).await;
        }
        committed(&*store, put("/a/0", "changed since")).await;
        let list = |after: Option<String>, limit| Range { prefix: "/a/".into(), after, limit, at: Some(at) };
        let mut after: Option<String> = None;
        let mut sizes = Vec::new();
        loop {
            let page = store.list(list(after.clone(), 500)).await.unwrap();
            sizes.push(page.entries.len());
            after = page.entries.last().map(|entry| entry.key.to_string());
            let seen: usize = sizes.iter().sum();
            assert_eq!(page.remaining as usize, 10 - seen);
            if page.remaining == 0 {
                break;
            }
        }
        assert_eq!(sizes, [4, 4, 2]);
        assert_eq!(store.list(list(None, 0)).await.unwrap().entries.len(), 10, "who wants all gets all");
    }
}
