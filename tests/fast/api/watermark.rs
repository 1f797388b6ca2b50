//! Waiters for a level are always woken in order of arrival.

use std::sync::{Arc, Mutex};

use podwright::api::Watermark;

#[test]
fn waiters_are_woken_in_their_order() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    runtime.block_on(async {
        let (level, woken) = (Arc::new(Watermark::default()), Arc::<Mutex<Vec<u64>>>::default());
        let waiter = |n: u64| {
            let (level, woken) = (level.clone(), woken.clone());
            tokio::spawn(async move {
                level.reached(5 + n % 2).await;
                woken.lock().expect("no panic").push(n);
            })
        };
        let waiting: Vec<_> = (0..20).map(waiter).collect();
        tokio::task::yield_now().await;
        level.set(5);
        tokio::task::yield_now().await;
        let even: Vec<u64> = (0..20).filter(|n| n % 2 == 0).collect();
        assert_eq!(*woken.lock().expect("no panic"), even, "the others want more");
        level.set(7);
        for waiter in waiting {
            waiter.await.expect("it ends");
        }
        let odd = (0..20).filter(|n| n % 2 == 1);
        assert_eq!(*woken.lock().expect("no panic"), even.into_iter().chain(odd).collect::<Vec<_>>());
        level.reached(3).await;
    });
}
