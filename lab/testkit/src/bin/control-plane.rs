//! Starts a control plane for experiments, and keeps it until Ctrl-C.

use std::io::Write;
use std::process::ExitCode;

use salvor_testkit::{Builder, ControlPlane, Part};
use tokio::signal::unix::{SignalKind, signal};

const USAGE: &str = "\
Starts a Kubernetes control plane on loopback, prints how to reach it, and ends it on Ctrl-C.

usage: control-plane [PART] [PART=FLAG]...

etcd and kube-apiserver always run.
  PART        also run kube-controller-manager or kube-scheduler
  PART=FLAG   run a part with a flag, such as kube-apiserver=--v=4
";

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| matches!(argument.as_str(), "-h" | "--help")) {
        return finish(say(USAGE).map_err(|error| error.to_string()));
    }
    match arguments.iter().try_fold(ControlPlane::builder(), |builder, argument| add(builder, argument)) {
        Ok(builder) => finish(run(builder).await),
        Err(problem) => finish(Err(format!("{problem}\n\n{USAGE}"))),
    }
}

fn add(builder: Builder, argument: &str) -> Result<Builder, String> {
    let (name, flag) = match argument.split_once('=') {
        Some((name, flag)) => (name, Some(flag)),
        None => (argument, None),
    };
    let part = Part::ALL.into_iter().find(|part| part.program() == name).ok_or_else(|| {
        format!("{name:?} is not a part; the parts are {}", Part::ALL.map(Part::program).join(", "))
    })?;
    let builder = builder.with(part);
    Ok(match flag {
        Some(flag) => builder.flag(part, flag),
        None => builder,
    })
}

async fn run(builder: Builder) -> Result<(), String> {
    let plane = builder.start().await.map_err(|error| error.to_string())?;
    // Before this, Ctrl-C ends the process, which ends the control plane.
    let mut interrupts =
        signal(SignalKind::interrupt()).map_err(|error| format!("Ctrl-C cannot be waited for: {error}"))?;
    say(&format!("export KUBECONFIG={}\n", plane.kubeconfig().display()))
        .map_err(|error| error.to_string())?;
    interrupts.recv().await;
    Ok(())
}

fn say(text: &str) -> std::io::Result<()> {
    let mut stdout = std::io::stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

fn finish(outcome: Result<(), String>) -> ExitCode {
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("control-plane: {problem}");
            ExitCode::FAILURE
        }
    }
}
