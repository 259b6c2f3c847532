//! The one loop that runs every controller: observe → plan → execute.
//!
//! A [`Controller`] says what it watches, what it sees for a key (listers only) and, as a pure
//! function, what is to be done. Queueing, concurrency, back-off, ordered execution, waiting until
//! the cache shows what was written, events, spans and metrics are here, once.

pub mod execute;
pub mod metrics;
pub mod plan;
pub mod watches;

use std::fmt::Display;
use std::hash::Hash;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use jiff::Timestamp;
use sampan_client::{Client, Error, Informers, ObjectKey, Queue, Recorder};
use sampan_util::{Shutdown, task};
use tracing::Instrument;

pub use execute::Failure;
pub use plan::{Action, Alive, EventNote, Form, Maker, Plan, Step};
pub use watches::Watches;

use crate::Settings;
use crate::garbage::Departures;
use execute::Executor;

/// Makes the client of one controller's identity from its name.
pub type ClientOf = Arc<dyn Fn(&str) -> Client + Send + Sync>;

/// What all controllers share.
pub struct Context {
    /// Reads for everybody: informers, and barriers after uncertain writes.
    pub shared: Client,
    pub client_of: ClientOf,
    pub informers: Informers,
    pub settings: Settings,
    pub shutdown: Shutdown,
    /// Tells of objects that are gone.
    pub departures: Departures,
}

impl Context {
    pub fn now(&self) -> Timestamp {
        Timestamp::try_from(self.settings.clock.now()).unwrap_or(Timestamp::UNIX_EPOCH)
    }
}

/// One line in the list of controllers.
pub struct Entry {
    pub name: &'static str,
    pub run: fn(Arc<Context>) -> BoxFuture<'static, ()>,
}

pub const fn entry<C: Controller>() -> Entry {
    Entry {
        name: C::NAME,
        run: |context| run::<C>(context).boxed(),
    }
}

pub trait Controller: Send + Sync + Sized + 'static {
    const NAME: &'static str;
    /// The controller's service account in `kube-system`.
    const IDENTITY: &'static str = Self::NAME;
    /// The component its events name.
    const COMPONENT: &'static str = Self::NAME;
    /// How many keys are worked on at the same time.
    const WORKERS: usize = 4;

    type Observed: Send + Sync;

    /// Takes the listers it needs and says which changes concern which keys.
    fn new(watches: &mut Watches<'_>, settings: &Settings) -> Self;

    /// What the caches show for a key; `None` if there is nothing to do for it.
    fn observe(&self, key: &ObjectKey) -> Option<Self::Observed>;

    /// Pure: what is to be done about it.
    fn reconcile(observed: &Self::Observed, now: Timestamp) -> Plan;

    /// The status to write in place of the planned one when actions failed.
    fn on_failure(
        _observed: &Self::Observed,
        _failures: &[Failure],
        _now: Timestamp,
    ) -> Option<Step> {
        None
    }
}

/// Runs one controller until shutdown.
pub async fn run<C: Controller>(context: Arc<Context>) {
    let queue = Queue::new();
    let mut watches = Watches::new(&context.informers, queue.clone());
    let controller = C::new(&mut watches, &context.settings);
    let views = watches.into_views();
    views.synced().await;
    if context.shutdown.is_triggered() {
        return;
    }
    let client = (context.client_of)(C::IDENTITY);
    let recorder = Recorder::new(client.clone(), C::COMPONENT, "");
    let executor = Executor::new(client, context.shared.clone(), recorder, views);
    let running = Arc::new(Running {
        controller,
        executor,
        context: Arc::clone(&context),
    });
    work(C::NAME, C::WORKERS, &context, queue, move |key| {
        let running = Arc::clone(&running);
        async move { running.reconcile(&key).await }
    })
    .await;
}

struct Running<C: Controller> {
    controller: C,
    executor: Executor,
    context: Arc<Context>,
}

impl<C: Controller> Running<C> {
    async fn reconcile(&self, key: &ObjectKey) -> Result<Option<Duration>, Error> {
        let Some(observed) = self.controller.observe(key) else {
            return Ok(None);
        };
        let now = self.context.now();
        let plan = C::reconcile(&observed, now);
        if plan.is_nothing() {
            return Ok(plan.requeue_after);
        }
        tracing::debug!(%plan, "planned");
        let requeue_after = plan.requeue_after;
        let on_failure = |failures: &[Failure]| C::on_failure(&observed, failures, now);
        self.executor.execute(plan, on_failure).await?;
        Ok(requeue_after)
    }
}

/// Hands the queue's keys to `handle`, `workers` at a time, until shutdown. A key whose handling
/// fails or panics comes back after a back-off, one that asks for it after the time it asks for.
pub(crate) async fn work<T, H, F>(
    name: &'static str,
    workers: usize,
    context: &Arc<Context>,
    queue: Queue<T>,
    handle: H,
) where
    T: Clone + Eq + Hash + Display + Send + Sync + 'static,
    H: Fn(T) -> F + Clone + Send + Sync + 'static,
    F: Future<Output = Result<Option<Duration>, Error>> + Send + 'static,
{
    let figures = queue.clone();
    context
        .settings
        .metrics
        .follow(name, move || figures.figures());
    let workers = (0..workers).map(|_| {
        let (queue, handle, context) = (queue.clone(), handle.clone(), Arc::clone(context));
        task::spawn(name, async move {
            while let Some(key) = queue.next().await {
                let span = tracing::info_span!("reconcile", controller = name, key = %key);
                let attempt = handle(key.clone());
                work_on(name, &key, attempt, &queue, &context)
                    .instrument(span)
                    .await;
                queue.done(&key);
            }
        })
    });
    let running = join_all(workers);
    context.shutdown.wait().await;
    queue.close();
    running.await;
}

async fn work_on<T: Clone + Eq + Hash>(
    name: &'static str,
    key: &T,
    attempt: impl Future<Output = Result<Option<Duration>, Error>>,
    queue: &Queue<T>,
    context: &Context,
) {
    let started = Instant::now();
    context.settings.metrics.begun(name, started);
    let result = match AssertUnwindSafe(attempt).catch_unwind().await {
        Ok(Ok(requeue_after)) => {
            queue.forget(key);
            if let Some(after) = requeue_after {
                queue.add_after(key.clone(), after);
            }
            "success"
        }
        Ok(Err(error)) => {
            let again = queue.add_rate_limited(key.clone());
            if error.is_conflict() || context.shutdown.is_triggered() {
                tracing::debug!(%error, ?again, "trying again");
            } else {
                tracing::warn!(%error, ?again, "cannot reconcile, trying again");
            }
            "error"
        }
        Err(_) => {
            let again = queue.add_rate_limited(key.clone());
            tracing::error!(?again, "a reconcile panicked, trying again");
            "panic"
        }
    };
    context.settings.metrics.reconciled(name, result, started);
}
