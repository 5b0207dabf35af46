//! Panics of the thread that plays, wherever they happen: a task that panics ends in silence.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Panics of this thread are noted from now on.
pub(super) fn watch() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            PANICS.with_borrow_mut(|panics| panics.push(info.to_string()));
            before(info);
        }));
    });
    take();
}

/// The panics of this thread since the last time.
pub(super) fn take() -> Vec<String> {
    PANICS.take()
}
