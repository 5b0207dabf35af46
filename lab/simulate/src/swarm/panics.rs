//! Collects panics of the playing thread: a task that panics otherwise ends silently.

use std::{cell::RefCell, panic, sync::Once};

thread_local! {
    static PANICS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records panics of this thread from now on.
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

/// The panics of this thread since the last call.
pub(super) fn take() -> Vec<String> {
    PANICS.take()
}
