//! Reads the workloads of a file.

use std::time::Duration;

use serde_json::Value;
use serde_saphyr::Spanned;

use super::values::{amounts, any_duration, bad, labelled, line, plain_name, positive, within};
use crate::scenario::{
    Amount, Budget, Consent, Pool, ScenarioError, Shape, Workload,
    file::{self, File},
    workloads,
};

/// Limits keep a typing error from filling the memory.
const MOST_PODS: u32 = 200_000;
const MOST_PODS_OF_WORK: u32 = 10_000;

/// Kubernetes' default grace period.
const USUAL_GRACE: Duration = Duration::from_secs(30);

/// All workloads, of both forms.
pub(super) fn workloads_of(file: &File, pools: &[Pool]) -> Result<Vec<Workload>, ScenarioError> {
    let mut all = Vec::new();
    if let Some(list) = &file.workloads {
        for (index, workload) in list.value.iter().enumerate() {
            let read = workload_of(&format!("workloads[{index}]"), workload, pools)?;
            if all.iter().any(|known: &Workload| known.name == read.name) {
                let problem = format!("there are two workloads {:?}", read.name);
                return Err(bad(line(&workload.value.name), &format!("workloads[{index}].name"), problem));
            }
            all.push(read);
        }
        let pods: u64 = all.iter().map(|it| u64::from(it.units())).sum();
        if pods > u64::from(MOST_PODS) {
            return Err(bad(
                line(list),
                "workloads",
                format!("{pods} pods are too many: at most {MOST_PODS}"),
            ));
        }
    }
    match &file.work {
        Some(work) => {
            let at = line(work);
            let file::Work { training, database, website, batch, simulation, tuning } = work.value;
            let pods = [training, database, website, batch, simulation, tuning]
                .iter()
                .map(|n| u64::from(*n))
                .sum::<u64>();
            if pods > u64::from(MOST_PODS_OF_WORK) {
                return Err(bad(
                    at,
                    "work",
                    format!("{pods} pods are too many: at most {MOST_PODS_OF_WORK}"),
                ));
            }
            let gpus = file.gpu_nodes.as_ref().map_or(0, |it| it.value);
            if tuning > gpus {
                let problem = format!(
                    "{tuning} pods need an accelerator each, and gpuNodes is {gpus}: write no more than that"
                );
                return Err(bad(at, "work.tuning", problem));
            }
            let short = workloads::of_short_form(&work.value);
            if let Some(twice) = short.iter().find(|it| all.iter().any(|known| known.name == it.name)) {
                return Err(bad(
                    at,
                    "work",
                    format!("{} is among the workloads as well: rename that", twice.name),
                ));
            }
            all.extend(short);
        }
        None if file.workloads.is_none() && file.pools.is_none() => {
            all = workloads::of_short_form(&file::Work::default());
        }
        None => {}
    }
    Ok(all)
}

fn workload_of(
    at: &str,
    spanned: &Spanned<file::Workload>,
    pools: &[Pool],
) -> Result<Workload, ScenarioError> {
    let it = &spanned.value;
    let name = plain_name(&it.name, &format!("{at}.name"))?;
    let pods = within(&it.pods, &format!("{at}.pods"), 1, MOST_PODS)?;
    let waits_for_the_end = it.pod_replacement_policy.as_ref().map_or(Ok(false), |policy| {
        Shape::waits(&policy.value)
            .map_err(|problem| bad(line(policy), &format!("{at}.podReplacementPolicy"), problem))
    })?;
    let parallelism = match &it.parallelism {
        Some(wanted) => within(wanted, &format!("{at}.parallelism"), 1, pods)?,
        None => pods,
    };
    let shape = match it.kind.value.as_str() {
        "Job" => Shape::Job { indexed: false, parallelism, waits_for_the_end },
        "IndexedJob" => Shape::Job { indexed: true, parallelism, waits_for_the_end },
        "JobSet" => {
            let jobs = match &it.jobs {
                Some(jobs) => within(jobs, &format!("{at}.jobs"), 1, MOST_PODS / pods)?,
                None => 1,
            };
            Shape::JobSet { jobs, waits_for_the_end }
        }
        "StatefulSet" => Shape::StatefulSet { volume: it.volume.as_ref().map(|volume| volume.value.clone()) },
        "Deployment" => Shape::Deployment,
        "AppWrapper" => Shape::AppWrapper,
        other => {
            let problem = format!(
                "{other:?} is not known: write Job, IndexedJob, JobSet, StatefulSet, Deployment or AppWrapper"
            );
            return Err(bad(line(&it.kind), &format!("{at}.kind"), problem));
        }
    };
    let kind = it.kind.value.as_str();
    let of_jobs = matches!(shape, Shape::Job { .. } | Shape::JobSet { .. });
    let misplaced = [
        ("jobs", it.jobs.as_ref().map(line), kind == "JobSet"),
        ("parallelism", it.parallelism.as_ref().map(line), matches!(shape, Shape::Job { .. })),
        ("podReplacementPolicy", it.pod_replacement_policy.as_ref().map(line), of_jobs),
        ("takes", it.takes.as_ref().map(line), of_jobs || kind == "AppWrapper"),
        ("checkpointEvery", it.checkpoint_every.as_ref().map(line), of_jobs || kind == "AppWrapper"),
        ("volume", it.volume.as_ref().map(line), kind == "StatefulSet"),
    ];
    for (field, written, fits) in misplaced {
        if let (Some(at_line), false) = (written, fits) {
            return Err(bad(at_line, &format!("{at}.{field}"), format!("a {kind} has none: leave it out")));
        }
    }
    let consent = it.consent.as_ref().map_or(Ok(Consent::None), |consent| {
        Consent::read(&consent.value).map_err(|problem| bad(line(consent), &format!("{at}.consent"), problem))
    })?;
    if let (Some(after), Consent::None) = (&it.evict_after, consent) {
        let problem = "counts only beside consent: write consent: terminate or delete".to_owned();
        return Err(bad(line(after), &format!("{at}.evictAfter"), problem));
    }
    if let Some(pool) = &it.pool
        && !pools.iter().any(|known| known.name == pool.value)
    {
        let known: Vec<&str> = pools.iter().map(|pool| pool.name.as_str()).collect();
        let problem = format!("there is no pool {:?}; there are {}", pool.value, known.join(", "));
        return Err(bad(line(pool), &format!("{at}.pool"), problem));
    }
    let optional = |value: &Option<Spanned<String>>, field: &str| {
        value.as_ref().map(|it| any_duration(it, &format!("{at}.{field}"))).transpose()
    };
    let keys = it.annotations.keys().map(|key| (key.clone(), String::new())).collect();
    labelled(line(spanned), &format!("{at}.annotations"), &keys)?;
    amounts(line(spanned), &format!("{at}.requests"), &it.requests)?;
    if let Some(volume) = &it.volume {
        amounts(line(volume), at, &[("volume".to_owned(), volume.value.clone())].into())?;
    }
    let mut requests = it.requests.clone();
    requests.entry("cpu".to_owned()).or_insert_with(|| "1".to_owned());
    Ok(Workload {
        name,
        shape,
        pods,
        takes: optional(&it.takes, "takes")?,
        checkpoint_every: positive(
            optional(&it.checkpoint_every, "checkpointEvery")?,
            it.checkpoint_every.as_ref(),
            &format!("{at}.checkpointEvery"),
        )?,
        start_delay: optional(&it.start_delay, "startDelay")?,
        consent,
        evict_after: optional(&it.evict_after, "evictAfter")?,
        grace: optional(&it.grace_period, "gracePeriod")?.unwrap_or(USUAL_GRACE),
        tolerates: optional(&it.tolerates_unreachable, "toleratesUnreachable")?,
        requests,
        pool: it.pool.as_ref().map(|pool| pool.value.clone()),
        annotations: it.annotations.clone(),
        budget: it.budget.as_ref().map(|budget| budget_of(&format!("{at}.budget"), budget)).transpose()?,
    })
}

fn budget_of(at: &str, spanned: &Spanned<file::Budget>) -> Result<Budget, ScenarioError> {
    let file::Budget { min_available, max_unavailable } = &spanned.value;
    match (min_available, max_unavailable) {
        (Some(least), None) => {
            Ok(Budget::MinAvailable(amount(spanned, &format!("{at}.minAvailable"), least)?))
        }
        (None, Some(most)) => {
            Ok(Budget::MaxUnavailable(amount(spanned, &format!("{at}.maxUnavailable"), most)?))
        }
        (Some(_), Some(_)) | (None, None) => {
            Err(bad(line(spanned), at, "write either minAvailable or maxUnavailable".into()))
        }
    }
}

fn amount(spanned: &Spanned<file::Budget>, at: &str, value: &Value) -> Result<Amount, ScenarioError> {
    let pods = value.as_u64().and_then(|pods| u32::try_from(pods).ok()).filter(|pods| *pods <= MOST_PODS);
    let share = || value.as_str()?.strip_suffix('%')?.parse::<u32>().ok().filter(|percent| *percent <= 100);
    pods.map(Amount::Pods).or_else(|| share().map(Amount::Percent)).ok_or_else(|| {
        let problem = format!(
            "{value} cannot be used: write a number of pods from 0 to {MOST_PODS}, or a share such as 50%"
        );
        bad(line(spanned), at, problem)
    })
}
