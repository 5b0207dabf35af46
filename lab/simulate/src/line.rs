//! The connection between one process and the API server. When the process dies, its connection goes dead.

use std::{
    pin::Pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll},
};

use http::{Method, Request};
use tokio::sync::{Notify, oneshot};
use tower::Service;

/// The write at which a process dies. Writes are counted from 1; writes of Leases do not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CrashPoint {
    /// The write is never sent.
    Before(u32),
    /// The write has been answered, but the process never receives the answer, or waited too long for it.
    After(u32),
}

/// The connection of one process. Clones are the same connection.
#[derive(Clone, Debug, Default)]
pub struct Line(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    died: Notify,
    /// Notified when a write is blocked, or released.
    held: Notify,
}

#[derive(Debug, Default)]
struct State {
    writes: u32,
    crash: Option<CrashPoint>,
    /// If set, the next write of a Lease kills the process, before it is sent or after it is answered.
    at_renewal: Option<Side>,
    dead: bool,
    hold: Hold,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The write is never sent.
    Before,
    /// The write has been answered, but the process never receives the answer.
    After,
}

/// Whether a write is to be delayed on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Hold {
    #[default]
    None,
    Planned(u32),
    Held,
}

impl Line {
    /// A connection that goes dead at this write.
    pub fn dying(crash: CrashPoint) -> Self {
        let line = Self::default();
        line.state().crash = Some(crash);
        line
    }

    /// From now on the connection goes dead at this write, counted from now.
    pub fn die_at(&self, crash: CrashPoint) {
        let mut state = self.state();
        let sent = state.writes;
        state.crash = Some(match crash {
            CrashPoint::Before(write) => CrashPoint::Before(sent + write),
            CrashPoint::After(write) => CrashPoint::After(sent + write),
        });
    }

    /// The connection goes dead at the next write of a Lease.
    pub fn die_at_renewal(&self, side: Side) {
        self.state().at_renewal = Some(side);
    }

    /// A connection that delays this write after the process has sent it and before the server receives it. Once
    /// released, the write arrives even if the caller no longer waits for the answer.
    pub fn holding(write: u32) -> Self {
        let line = Self::default();
        line.state().hold = Hold::Planned(write);
        line
    }

    /// Waits until the write is blocked.
    pub async fn held(&self) {
        loop {
            // Register before checking, so that no notification is missed.
            let changed = self.0.held.notified();
            if self.state().hold == Hold::Held {
                return;
            }
            changed.await;
        }
    }

    pub fn let_go(&self) {
        self.state().hold = Hold::None;
        self.0.held.notify_waiters();
    }

    /// Starts to block the write that was just counted, if that was planned. Returns whether it does.
    fn begin_to_hold(&self) -> bool {
        let mut state = self.state();
        let is_planned = state.hold == Hold::Planned(state.writes);
        if is_planned {
            state.hold = Hold::Held;
            self.0.held.notify_waiters();
        }
        is_planned
    }

    async fn while_held(&self) {
        loop {
            let changed = self.0.held.notified();
            if self.state().hold != Hold::Held {
                return;
            }
            changed.await;
        }
    }

    /// Puts the connection in front of a service.
    pub fn before<S>(&self, service: S) -> Wired<S> {
        Wired { service, line: self.clone() }
    }

    /// From now on no request arrives, and none is answered.
    pub fn cut(&self) {
        self.state().dead = true;
        self.0.died.notify_waiters();
    }

    pub async fn died(&self) {
        loop {
            // Register before checking, so that no notification is missed.
            let died = self.0.died.notified();
            if self.state().dead {
                return;
            }
            died.await;
        }
    }

    /// The number of writes that were sent on it.
    pub fn writes(&self) -> u32 {
        self.state().writes
    }

    /// Counts the request if it is a write, and goes dead if that was planned. Returns whether to die after the answer.
    fn send<B>(&self, request: &Request<B>) -> bool {
        let is_write = !matches!(*request.method(), Method::GET | Method::HEAD);
        let keeps_a_lease = request.uri().path().contains("/leases");
        let crash = {
            let mut state = self.state();
            if is_write && keeps_a_lease {
                let side = state.at_renewal;
                drop(state);
                return match side {
                    None => false,
                    Some(Side::After) => true,
                    Some(Side::Before) => {
                        self.cut();
                        false
                    }
                };
            }
            if !is_write {
                return false;
            }
            state.writes += 1;
            state.crash.map(|crash| (crash, state.writes))
        };
        match crash {
            Some((CrashPoint::Before(planned), number)) if planned == number => {
                self.cut();
                false
            }
            Some((CrashPoint::After(planned), number)) => planned == number,
            _ => false,
        }
    }

    async fn while_alive(&self) {
        if self.state().dead {
            std::future::pending::<()>().await;
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Cuts a connection when dropped, so it also works when the caller no longer waits for the answer.
struct Death(Line);

impl Drop for Death {
    fn drop(&mut self) {
        self.0.cut();
    }
}

#[derive(Clone, Debug)]
pub struct Wired<S> {
    service: S,
    line: Line,
}

impl<S, B> Service<Request<B>> for Wired<S>
where
    S: Service<Request<B>> + Clone + Send + 'static,
    S::Future: Send,
    S::Response: Send + 'static,
    S::Error: Send + 'static,
    B: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<S::Response, S::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let (mut service, line) = (self.service.clone(), self.line.clone());
        Box::pin(async move {
            line.while_alive().await;
            let dies = line.send(&request);
            if !matches!(*request.method(), Method::GET | Method::HEAD) {
                if line.begin_to_hold() {
                    let (on_its_way, (tell, answer)) = (line.clone(), oneshot::channel());
                    tokio::spawn(async move {
                        on_its_way.while_held().await;
                        // The caller may have stopped waiting.
                        let _ = tell.send(service.call(request).await);
                    });
                    let answer = answer.await;
                    line.while_alive().await;
                    return match answer {
                        Ok(answer) => answer,
                        Err(_) => std::future::pending().await,
                    };
                }
                line.while_held().await;
            }
            line.while_alive().await;
            let death = dies.then(|| Death(line.clone()));
            let answer = service.call(request).await;
            drop(death);
            line.while_alive().await;
            answer
        })
    }
}
