//! The last good copy: made at start from what was checked there, and once in a while after that.

use std::fs;
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rusqlite::{Connection, InterruptHandle};

use super::place::Place;
use super::{SqliteOptions, file};
use crate::{Error, Revision};

/// The thread that renews the copy, beside everything else.
pub(super) struct Copier {
    thread: JoinHandle<()>,
    interrupt: InterruptHandle,
    stop: Sender<()>,
}

impl Copier {
    pub(super) fn start(options: &SqliteOptions, place: Place) -> Result<Self, Error> {
        let connection = file::connect(options, &options.database(), true)?;
        let interrupt = connection.get_interrupt_handle();
        let (stop, stopped) = bounded(0);
        let worker = Worker {
            options: options.clone(),
            place,
            connection,
            copied: 0,
        };
        let thread = std::thread::Builder::new()
            .name("store-copy".to_owned())
            .spawn(move || worker.run(&stopped))
            .map_err(|error| Error::io(&options.directory, error))?;
        Ok(Self {
            thread,
            interrupt,
            stop,
        })
    }

    pub(super) fn stop(self) {
        drop(self.stop);
        self.interrupt.interrupt();
        let _ = self.thread.join();
    }
}

struct Worker {
    options: SqliteOptions,
    place: Place,
    connection: Connection,
    /// The newest row of the copy, as far as known.
    copied: Revision,
}

impl Worker {
    fn run(mut self, stopped: &Receiver<()>) {
        // What is there now was checked while it was opened.
        let mut checked = true;
        loop {
            let wait = match self.fresh_for() {
                Some(left) => left,
                None => {
                    if let Err(error) = self.renew(checked) {
                        tracing::warn!(%error, "cannot renew the last good copy of the database");
                    }
                    self.options.copy_age
                }
            };
            checked = false;
            match stopped.recv_timeout(wait) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// How long the copy that is there is still good enough.
    fn fresh_for(&self) -> Option<Duration> {
        let age = fs::metadata(self.options.good_copy())
            .and_then(|meta| meta.modified())
            .ok()?
            .elapsed()
            .ok()?;
        self.options
            .copy_age
            .checked_sub(age)
            .filter(|left| !left.is_zero())
    }

    fn renew(&mut self, checked: bool) -> Result<(), Error> {
        // Something else may lie there by now.
        self.place.check()?;
        let newest = file::newest_row(&self.connection)?;
        if newest == self.copied {
            return Ok(());
        }
        if !checked {
            let transaction = self.connection.unchecked_transaction()?;
            file::check(&transaction, &self.options.database())?;
        }
        let target = self.options.good_copy();
        file::copy_to(&self.connection, &target)?;
        self.copied = newest;
        Ok(())
    }
}
