//! Parts of one process that fail, and come back, without the others.
//!
//! A part is a loop with whatever tasks it spawns by [`task::spawn`](crate::task::spawn). A panic in any of them ends
//! that run of the part; the next one starts after a back-off. Every run has a [`Shutdown`] of its own, so that nothing
//! of a failed run goes on beside the next. What became of all parts stands in [`Parts::reports`]; a part that somebody
//! else starts again (a child process) is told by [`Parts::tell`].
//!
//! [`Parts::set_faults`] makes parts fail on purpose: that is how tests show what the others do meanwhile.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::future::Future;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;

use crate::task::GRACE;
use crate::{Backoff, Shutdown};

const BACKOFF: Backoff = Backoff::new(Duration::from_millis(200), Duration::from_secs(30));
/// A run that lasted so long was no failed start: the back-off begins anew after it.
const STABLE: Duration = Duration::from_secs(60);
/// An error of the first run within this is one of settings or of the machine: the caller gets it.
const START: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// Where panics of the tasks of one run are told.
    static RUN: mpsc::UnboundedSender<String>;
}

/// The future, told of as the current run's if there is one.
pub(crate) fn inherit<F: Future>(future: F) -> impl Future<Output = F::Output> {
    let run = RUN.try_with(Clone::clone).ok();
    async move {
        match run {
            Some(run) => RUN.scope(run, future).await,
            None => future.await,
        }
    }
}

/// Tells the run that the current task belongs to of a panic.
pub(crate) fn tell_panic(task: &str, text: &str) {
    // Outside of every part, and after the run has ended, nobody wants to know.
    let _told = RUN.try_with(|run| run.send(panicked(task, text)));
}

/// The one form in which a report says that a task panicked: who shows reports to everybody cuts it before the text.
fn panicked(task: &str, text: &str) -> String {
    format!("{task} panicked: {text}")
}

/// Why the main task of a part did not return.
fn ended_with(name: &str, error: JoinError) -> String {
    match error.try_into_panic() {
        Ok(panic) => panicked(name, &crate::task::panic_text(panic.as_ref())),
        Err(_) => "it was cancelled".to_owned(),
    }
}

/// A failure on purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The part ends at once and stays down until the fault is gone.
    Down,
    /// A task of the part panics, once.
    Panic,
}

/// How a part is doing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    pub name: &'static str,
    /// `Err` says why it is down.
    pub state: Result<(), String>,
    /// How often it was started again.
    pub restarts: u64,
}

type Listener = Box<dyn Fn(&Report) + Send + Sync>;
type Reports = BTreeMap<&'static str, Report>;

/// All parts of the process; cheap to clone.
#[derive(Clone, Default)]
pub struct Parts(Arc<Inner>);

#[derive(Default)]
struct Inner {
    reports: watch::Sender<Reports>,
    listener: OnceLock<Listener>,
    faults: watch::Sender<BTreeMap<String, Fault>>,
}

/// Why a run ended.
enum End<E> {
    Shutdown,
    Returned(Result<(), E>),
    Failed(String),
    Down,
}

impl Parts {
    /// Who is told of every failure and every return, as they happen. Only the first one who asks is.
    pub fn on_change(&self, listener: impl Fn(&Report) + Send + Sync + 'static) {
        if self.0.listener.set(Box::new(listener)).is_err() {
            tracing::debug!("somebody listens already to what becomes of parts");
        }
    }

    /// Which parts are to fail, by name, from now on.
    pub fn set_faults(&self, faults: BTreeMap<String, Fault>) {
        self.0.faults.send_if_modified(|present| {
            let changes = *present != faults;
            *present = faults;
            changes
        });
    }

    pub fn reports(&self) -> Vec<Report> {
        self.0.reports.borrow().values().cloned().collect()
    }

    /// All reports, now and whenever one changes.
    pub fn follow(&self) -> watch::Receiver<BTreeMap<&'static str, Report>> {
        self.0.reports.subscribe()
    }

    /// How one part is doing.
    pub fn state(&self, name: &str) -> Result<(), String> {
        let reports = self.0.reports.borrow();
        reports.get(name).map_or_else(
            || Err("it does not run yet".to_owned()),
            |one| one.state.clone(),
        )
    }

    /// A part is well, or is down for this reason. What comes back has been started again.
    pub fn tell(&self, name: &'static str, state: Result<(), String>) {
        let (mut report, mut before) = (None, Ok(()));
        self.0.reports.send_modify(|all| {
            let known = all.entry(name).or_insert(Report {
                name,
                state: Ok(()),
                restarts: 0,
            });
            before = std::mem::replace(&mut known.state, state);
            known.restarts += u64::from(before.is_err() && known.state.is_ok());
            report = Some(known.clone());
        });
        let Some(report) = report else { return };
        match &report.state {
            Err(reason) => {
                tracing::error!(part = name, reason, "a part failed and is started again");
            }
            Ok(()) if before.is_err() => tracing::info!(part = name, "a part runs again"),
            Ok(()) => return,
        }
        if let Some(listener) = self.0.listener.get() {
            listener(&report);
        }
    }

    /// Runs a part until shutdown, again and again. `make` gets the shutdown of one run. An error at the very start is
    /// returned: what cannot work will not work the next time either. A part that has a report already has run before,
    /// here or in an earlier round: its errors end nothing. Whoever drops this future ends the run that goes on.
    pub async fn run<M, F, E>(
        &self,
        name: &'static str,
        shutdown: Shutdown,
        mut make: M,
    ) -> Result<(), E>
    where
        M: FnMut(Shutdown) -> F,
        F: Future<Output = Result<(), E>> + Send + 'static,
        E: Display + Send + 'static,
    {
        let mut faults = Faults {
            name,
            all: self.0.faults.subscribe(),
            last: None,
        };
        // Before the first `tell`, which makes the report.
        let mut first = !self.0.reports.borrow().contains_key(name);
        let mut failures = 0;
        while faults.released(&shutdown).await {
            self.tell(name, Ok(()));
            let started = Instant::now();
            let stop = shutdown.child();
            let end = run_once(name, make(stop.clone()), &stop, &shutdown, &mut faults).await;
            let reason = match end {
                End::Shutdown => return Ok(()),
                End::Returned(Err(error)) if first && started.elapsed() < START => {
                    return Err(error);
                }
                End::Returned(Err(error)) => format!("{error:#}"),
                End::Returned(Ok(())) if shutdown.is_triggered() => return Ok(()),
                End::Returned(Ok(())) => "it ended by itself".to_owned(),
                End::Failed(reason) => reason,
                End::Down => "it was taken down".to_owned(),
            };
            first = false;
            self.tell(name, Err(reason));
            if started.elapsed() > STABLE {
                failures = 0;
            }
            let delay = BACKOFF.delay(failures);
            failures += 1;
            tokio::select! {
                () = shutdown.wait() => break,
                () = tokio::time::sleep(delay) => {}
            }
        }
        Ok(())
    }
}

/// The faults of one part.
struct Faults {
    name: &'static str,
    all: watch::Receiver<BTreeMap<String, Fault>>,
    last: Option<Fault>,
}

impl Faults {
    /// Returns once the part need not stay down; `false` at shutdown.
    async fn released(&mut self, shutdown: &Shutdown) -> bool {
        let name = self.name;
        tokio::select! {
            () = shutdown.wait() => return false,
            // The sender lives as long as all parts do.
            found = self.all.wait_for(|faults| faults.get(name) != Some(&Fault::Down)) => {
                self.last = found.ok().and_then(|faults| faults.get(name).copied());
            }
        }
        !shutdown.is_triggered()
    }

    /// The next fault that was not there before.
    async fn next(&mut self) -> Fault {
        loop {
            if self.all.changed().await.is_err() {
                std::future::pending::<()>().await;
            }
            let now = self.all.borrow_and_update().get(self.name).copied();
            let before = std::mem::replace(&mut self.last, now);
            if let Some(fault) = now.filter(|_| now != before) {
                return fault;
            }
        }
    }
}

/// The main task of a run. It does not outlive who waits for it: a dropped handle alone would leave it running, beside
/// the next run of the same part.
struct Running<T> {
    task: JoinHandle<T>,
    stop: Shutdown,
}

impl<T> Drop for Running<T> {
    fn drop(&mut self) {
        // What the task spawned listens to this; nothing is left to do where the run has ended.
        self.stop.trigger();
        self.task.abort();
    }
}

async fn run_once<F, E>(
    name: &'static str,
    future: F,
    stop: &Shutdown,
    shutdown: &Shutdown,
    faults: &mut Faults,
) -> End<E>
where
    F: Future<Output = Result<(), E>> + Send + 'static,
    E: Display + Send + 'static,
{
    let (tell, mut told) = mpsc::unbounded_channel();
    let mut running = Running {
        task: tokio::spawn(RUN.scope(tell.clone(), future)),
        stop: stop.clone(),
    };
    let end = loop {
        tokio::select! {
            // What it spawned is told to end when `running` is dropped.
            ended = &mut running.task => return match ended {
                Ok(result) => End::Returned(result),
                Err(error) => End::Failed(ended_with(name, error)),
            },
            Some(reason) = told.recv() => break End::Failed(reason),
            () = shutdown.wait() => break End::Shutdown,
            fault = faults.next() => match fault {
                Fault::Down => break End::Down,
                Fault::Panic => RUN.sync_scope(tell.clone(), || panic_in_a_task(name)),
            },
        }
    };
    stop.trigger();
    finish(&mut running.task, matches!(end, End::Down)).await;
    end
}

/// Waits for a run that was asked to end, or ends it.
async fn finish<T>(running: &mut JoinHandle<T>, at_once: bool) {
    if at_once || tokio::time::timeout(GRACE, &mut *running).await.is_err() {
        running.abort();
        // Cancelled, as asked for; or it ended meanwhile.
        let _ended = running.await;
    }
}

fn panic_in_a_task(part: &'static str) {
    drop(crate::task::spawn(part, async move {
        panic!("a fault on purpose in {part}");
    }));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::{Mutex, PoisonError};

    use super::*;

    fn faults(list: &[(&str, Fault)]) -> BTreeMap<String, Fault> {
        list.iter()
            .map(|(name, fault)| ((*name).to_owned(), *fault))
            .collect()
    }

    /// Runs a part that counts its starts and lives until it is told to stop.
    fn counted(
        parts: &Parts,
        shutdown: &Shutdown,
    ) -> (Arc<AtomicU32>, JoinHandle<Result<(), String>>) {
        let starts = Arc::new(AtomicU32::new(0));
        let (own, parts, shutdown) = (Arc::clone(&starts), parts.clone(), shutdown.clone());
        let running = tokio::spawn(async move {
            let make = |stop: Shutdown| {
                own.fetch_add(1, Ordering::SeqCst);
                async move {
                    stop.wait().await;
                    Ok(())
                }
            };
            parts.run("test", shutdown, make).await
        });
        (starts, running)
    }

    async fn until(condition: impl Fn() -> bool) {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_part_stays_down_as_long_as_its_fault_is_there() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let (starts, running) = counted(&parts, &shutdown);
        until(|| starts.load(Ordering::SeqCst) == 1).await;
        parts.set_faults(faults(&[("test", Fault::Down)]));
        until(|| parts.state("test").is_err()).await;
        tokio::time::sleep(Duration::from_secs(100)).await;
        assert_eq!(starts.load(Ordering::SeqCst), 1);
        parts.set_faults(BTreeMap::new());
        until(|| parts.state("test").is_ok()).await;
        assert_eq!(starts.load(Ordering::SeqCst), 2);
        assert_eq!(parts.reports()[0].restarts, 1);
        shutdown.trigger();
        assert!(running.await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_in_any_task_of_a_part_starts_it_again() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let told = Arc::new(Mutex::new(Vec::new()));
        let telling = Arc::clone(&told);
        parts.on_change(move |report| {
            let mut told = telling.lock().unwrap_or_else(PoisonError::into_inner);
            told.push(report.state.clone());
        });
        let (starts, _running) = counted(&parts, &shutdown);
        until(|| starts.load(Ordering::SeqCst) == 1).await;
        parts.set_faults(faults(&[("test", Fault::Panic)]));
        until(|| starts.load(Ordering::SeqCst) == 2).await;
        let told = told.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let reason = "test panicked: a fault on purpose in test".to_owned();
        assert_eq!(told, [Err(reason), Ok(())]);
        shutdown.trigger();
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_at_the_start_is_the_callers_a_later_one_is_not() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let fails = |_: Shutdown| async { Err("no such port") };
        assert_eq!(
            parts.run("early", shutdown.clone(), fails).await,
            Err("no such port")
        );
        let starts = Arc::new(AtomicU32::new(0));
        let (counting, ending) = (Arc::clone(&starts), shutdown.clone());
        let late = move |_: Shutdown| {
            let (last, ending) = (counting.fetch_add(1, Ordering::SeqCst) == 2, ending.clone());
            async move {
                tokio::time::sleep(Duration::from_secs(20)).await;
                if last {
                    ending.trigger();
                }
                Err("later")
            }
        };
        assert_eq!(parts.run("late", shutdown, late).await, Ok(()));
        assert_eq!(starts.load(Ordering::SeqCst), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_at_the_start_of_a_later_round_ends_nothing() {
        let parts = Parts::default();
        let round = Shutdown::new();
        let (starts, running) = counted(&parts, &round);
        until(|| starts.load(Ordering::SeqCst) == 1).await;
        round.trigger();
        assert!(running.await.is_ok());
        let (again, ending) = (Shutdown::new(), Shutdown::new());
        let (counting, end) = (Arc::clone(&starts), again.clone());
        let fails = move |_: Shutdown| {
            let (last, end) = (counting.fetch_add(1, Ordering::SeqCst) == 3, end.clone());
            async move {
                if last {
                    end.trigger();
                }
                Err("the address is still in use")
            }
        };
        assert_eq!(parts.run("test", again, fails).await, Ok(()));
        assert_eq!(starts.load(Ordering::SeqCst), 4);
        // Another part's report does not count.
        let fails = |_: Shutdown| async { Err("no such port") };
        assert_eq!(parts.run("other", ending, fails).await, Err("no such port"));
    }

    /// Counts the tasks that are there.
    struct Alive(Arc<AtomicU32>);

    impl Alive {
        fn new(count: &Arc<AtomicU32>) -> Self {
            count.fetch_add(1, Ordering::SeqCst);
            Self(Arc::clone(count))
        }
    }

    impl Drop for Alive {
        fn drop(&mut self) {
            self.0.fetch_sub(1, Ordering::SeqCst);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_run_ends_with_who_waits_for_it() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let alive = Arc::new(AtomicU32::new(0));
        let (counting, outer) = (Arc::clone(&alive), shutdown.clone());
        let running = tokio::spawn(async move {
            let make = |stop: Shutdown| {
                let counting = Arc::clone(&counting);
                async move {
                    let _main = Alive::new(&counting);
                    let helper = Alive::new(&counting);
                    drop(crate::task::spawn("helper", async move {
                        let _helper = helper;
                        stop.wait().await;
                    }));
                    std::future::pending::<Result<(), String>>().await
                }
            };
            parts.run("test", outer, make).await
        });
        until(|| alive.load(Ordering::SeqCst) == 2).await;
        running.abort();
        assert!(running.await.is_err());
        until(|| alive.load(Ordering::SeqCst) == 0).await;
        assert!(!shutdown.is_triggered());
    }

    async fn panics() -> Result<(), String> {
        tokio::task::yield_now().await;
        panic!("a secret");
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_of_the_main_task_is_told_like_any_other() {
        let (parts, shutdown) = (Parts::default(), Shutdown::new());
        let (own, outer) = (parts.clone(), shutdown.clone());
        let running =
            tokio::spawn(async move { own.run("test", outer, |_: Shutdown| panics()).await });
        until(|| {
            let state = parts.state("test");
            state.is_err_and(|why| why != "it does not run yet")
        })
        .await;
        assert_eq!(
            parts.state("test"),
            Err("test panicked: a secret".to_owned())
        );
        shutdown.trigger();
        assert!(running.await.is_ok());
    }
}
