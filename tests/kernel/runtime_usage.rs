//! The runtime's measurements of real cgroups and the machine.

use std::time::Duration;

use podwright_runtime::{JournalWriter, Measured, Usage};

use super::runtime::support::{Bed, within};

fn of(measured: &Measured, container: &str) -> Option<Usage> {
    measured.containers.iter().find(|c| c.id.name == container).map(|c| c.usage)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_container_that_works_uses_cpu_and_one_that_holds_memory_has_it() {
    let bed = Bed::new("usage").await;
    bed.sandbox("s").await;
    let busy = bed.run("busy", "while :; do :; done").await;
    // tail keeps its buffer until its input ends.
    bed.run("holder", "(head -c 30000000 /dev/zero; sleep 1000) | tail -c 30000000").await;
    within("28 MiB are held", || async {
        let now = bed.runtime.usage().await.unwrap();
        let holder = of(&now, "holder").unwrap();
        // Without the memory controller the fallback includes the shells.
        if (28 << 20..40 << 20).contains(&holder.memory) { Ok(()) } else { Err(now) }
    })
    .await;
    let before = bed.runtime.usage().await.unwrap();
    within("half a second is used by who works, and nothing by who sleeps", || async {
        let now = bed.runtime.usage().await.unwrap();
        let grown = |container: &str| {
            let (now, before) = (of(&now, container).unwrap(), of(&before, container).unwrap());
            (now.cpu_us - before.cpu_us, now.at.duration_since(before.at))
        };
        let ((used, passed), (slept, _)) = (grown("busy"), grown("holder"));
        // Read shortly after the clock, with tolerance for a busy machine.
        assert!(u128::from(used) < passed.as_micros() * 11 / 10 + 100_000, "{used} us of one CPU in {passed:?}");
        assert!(slept < 50_000, "{slept} us of sleep");
        let machine = now.machine.unwrap().cpu_us - before.machine.unwrap().cpu_us;
        // The machine counts in ticks of 10 ms.
        if used > 500_000 && machine + 50_000 > used { Ok(()) } else { Err(now) }
    })
    .await;
    bed.runtime.stop_container(&busy, libc::SIGKILL, Duration::ZERO, &JournalWriter::none()).await.unwrap();
    let left = bed.runtime.usage().await.unwrap();
    assert_eq!(left.containers.iter().map(|c| c.id.name.as_str()).collect::<Vec<_>>(), ["holder"]);
    bed.end().await;
}
