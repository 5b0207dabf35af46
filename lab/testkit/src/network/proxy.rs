//! A TCP proxy whose network can be disturbed while connections run through it.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::Instant;

use super::ports;
use crate::access::Access;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Passes everything on at once.
    Pass,
    /// Passes everything on this much later, in each direction.
    Latency(Duration),
    /// Resets every connection, and refuses new ones.
    Cut,
    /// Passes nothing on, and keeps every connection open, like a partition as TCP sees it. Data sent meanwhile arrives
    /// once it is over.
    Blackhole,
}

/// A proxy in front of an API server. It runs on the async runtime that started it, until it is dropped.
#[derive(Debug)]
pub struct Proxy {
    access: Access,
    mode: watch::Sender<Mode>,
    state: watch::Receiver<State>,
    task: JoinHandle<()>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct State {
    listening: bool,
    connections: usize,
}

impl Proxy {
    /// Starts a proxy in front of `target`, which `access` is for.
    pub(crate) async fn start(target: SocketAddr, access: Access) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, ports::free())).await?;
        let address = listener.local_addr()?;
        let server = format!("https://{address}").parse().map_err(io::Error::other)?;
        let (mode, follow_mode) = watch::channel(Mode::Pass);
        let (tell_state, state) = watch::channel(State { listening: true, connections: 0 });
        let task = tokio::spawn(serve(listener, address, target, follow_mode, tell_state));
        Ok(Self { access: Access { server, ..access }, mode, state, task })
    }

    /// Changes the mode, and returns when it is in force.
    pub async fn set(&self, mode: Mode) {
        self.mode.send_replace(mode);
        let in_force = |state: &State| match mode {
            Mode::Cut => !state.listening && state.connections == 0,
            Mode::Pass | Mode::Latency(_) | Mode::Blackhole => state.listening,
        };
        // The task only ends with the proxy itself.
        let _ = self.state.clone().wait_for(in_force).await;
    }

    /// Access through the proxy, with the rights of the admin.
    pub fn admin(&self) -> &Access {
        &self.access
    }

    /// An admin's client that goes through the proxy.
    pub fn client(&self, user_agent: &str) -> Client {
        self.access.client(user_agent)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn serve(
    listener: TcpListener,
    address: SocketAddr,
    target: SocketAddr,
    mut mode: watch::Receiver<Mode>,
    state: watch::Sender<State>,
) {
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        if *mode.borrow_and_update() == Mode::Cut {
            // The kernel refuses connections once the listener is closed.
            listener = None;
        } else if listener.is_none() {
            listener = TcpListener::bind(address).await.ok();
            if listener.is_none() {
                // Another process probes whether this port is free, or uses it for a moment.
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            }
        }
        state.send_replace(State { listening: listener.is_some(), connections: connections.len() });
        let accept = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            accepted = accept => if let Ok((client, _)) = accepted {
                connections.spawn(connection(client, target, mode.clone()));
            },
            Some(_) = connections.join_next() => {}
            changed = mode.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// One connection, until both sides have closed it or it is cut.
async fn connection(mut client: TcpStream, target: SocketAddr, mut mode: watch::Receiver<Mode>) {
    let Ok(mut server) = TcpStream::connect(target).await else {
        return;
    };
    // Without this, the kernel would add its own delays to the requested ones.
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let (there, back) = (mode.clone(), mode.clone());
    let passing = async {
        let (from_client, to_client) = client.split();
        let (from_server, to_server) = server.split();
        tokio::join!(pass(from_client, to_server, there), pass(from_server, to_client, back));
    };
    let cut = tokio::select! {
        () = passing => false,
        _ = mode.wait_for(|&mode| mode == Mode::Cut) => true,
    };
    if cut {
        // Closing a socket with zero linger sends a reset.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

/// One direction, until its source ends. Reading continues while data waits for its time, so that latency does not
/// limit the throughput.
async fn pass(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, mut mode: watch::Receiver<Mode>) {
    let (queue, mut queued) = mpsc::channel::<(Instant, Vec<u8>)>(64);
    let read = async move {
        let mut buffer = vec![0; 32 * 1024];
        while let Ok(length @ 1..) = from.read(&mut buffer).await {
            if queue.send((Instant::now(), buffer[..length].to_vec())).await.is_err() {
                break;
            }
        }
    };
    let write = async {
        while let Some((arrival, bytes)) = queued.recv().await {
            due(arrival, &mut mode).await;
            if to.write_all(&bytes).await.is_err() {
                return;
            }
        }
        due(Instant::now(), &mut mode).await;
        let _ = to.shutdown().await;
    };
    tokio::join!(read, write);
}

/// Waits until the network lets data through that arrived at that time.
async fn due(arrival: Instant, mode: &mut watch::Receiver<Mode>) {
    loop {
        let until = match *mode.borrow_and_update() {
            Mode::Pass | Mode::Cut => return,
            Mode::Latency(latency) => Some(arrival + latency),
            Mode::Blackhole => None,
        };
        let time = async {
            match until {
                Some(until) => tokio::time::sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = time => return,
            changed = mode.changed() => if changed.is_err() {
                return;
            },
        }
    }
}
