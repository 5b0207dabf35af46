//! Other tasks on the same thread get their turn, however much there is to decide.

use super::*;

#[tokio::test(start_paused = true)]
async fn thousands_of_subjects_are_not_judged_in_one_go() {
    let bench = Bench::new(|_| Answer::ok());
    for number in 0..2000 {
        let name: &'static str = format!("pod-{number}").leak();
        bench.tell(News::Pod(name, Want::Nothing)).await;
    }
    pass(1.0).await;
    (bench.lead)(None);
    pass(1.0).await;
    bench.judged.lock().unwrap().clear();
    // A new leader decides everything.
    (bench.lead)(LONG);
    let judged = || bench.judged.lock().unwrap().len();
    let (mut before, mut most) = (0, 0);
    while before < 2000 {
        tokio::task::yield_now().await;
        let now = judged();
        most = most.max(now - before);
        before = now;
    }
    assert!(most <= LOOKS_IN_A_ROUND, "{most} were judged before anybody else had a turn");
}

#[tokio::test(start_paused = true)]
async fn writes_hold_up_no_verdict_and_whoever_waits_for_room_is_judged_again() {
    // Two attempts run at once.
    let bench = Bench::new(|_| Answer::ok().late(Duration::from_secs(5)));
    for name in ["a", "b", "c", "d"] {
        bench.want(name, &[Patch]).await;
    }
    bench.tell(News::Pod("e", Want::Nothing)).await;
    pass(1.0).await;
    let judged = || bench.judged.lock().unwrap().clone();
    assert_eq!((judged(), bench.written().len()), (vec!["a", "b", "c", "d", "e"], 2));
    // A step that is no longer wanted by then is not done.
    bench.tell(News::Pod("c", Want::Nothing)).await;
    pass(1.0).await;
    assert_eq!(judged().len(), 5, "it has its place in the queue");
    pass(4.0).await;
    assert_eq!((&judged()[5..7], bench.written().len()), (&["c", "d"][..], 3));
}
