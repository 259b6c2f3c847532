//! A SQLite file layer over the usual one that writes down what is written and synced, and fails when told to.
//! Syncs are only written down: what a machine without power would keep is worked out by [`super::disk`].
#![allow(unsafe_code, clippy::undocumented_unsafe_blocks)]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use rand::Rng as _;
use rand::SeedableRng as _;
use rand::rngs::SmallRng;
use rusqlite::ffi;

/// The files whose fate matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Database,
    Log,
    Other,
}

#[derive(Debug, Clone)]
pub enum Op {
    Write {
        file: Kind,
        offset: usize,
        data: Vec<u8>,
    },
    Truncate {
        file: Kind,
        size: usize,
    },
    Sync {
        file: Kind,
    },
    /// The sync failed: the system has forgotten that what was written before is not on the disk.
    LostSync {
        file: Kind,
    },
    /// Something that the test wants to find again at its place.
    Mark(usize),
}

/// What has happened, in order, and how often to fail.
pub struct Recorder {
    pub ops: Mutex<Vec<Op>>,
    random: Mutex<SmallRng>,
    /// One in so many syncs and writes fails; 0: none.
    pub failing_syncs: AtomicU32,
    pub failing_writes: AtomicU32,
    pub failures: AtomicU32,
}

impl Recorder {
    fn note(&self, file: Kind, op: Op) {
        if file != Kind::Other {
            self.ops.lock().unwrap().push(op);
        }
    }

    pub fn mark(&self, mark: usize) {
        self.ops.lock().unwrap().push(Op::Mark(mark));
    }

    fn fails(&self, file: Kind, one_in: &AtomicU32) -> bool {
        let one_in = one_in.load(Ordering::Relaxed);
        let fails = file != Kind::Other
            && one_in > 0
            && self.random.lock().unwrap().random_range(0..one_in) == 0;
        if fails {
            self.failures.fetch_add(1, Ordering::Relaxed);
        }
        fails
    }
}

#[repr(C)]
struct File {
    base: ffi::sqlite3_file,
    recorder: *const Recorder,
    kind: Kind,
    // The real file follows.
}

unsafe fn real(file: *mut ffi::sqlite3_file) -> *mut ffi::sqlite3_file {
    unsafe { file.cast::<u8>().add(size_of::<File>()).cast() }
}

/// Calls the same method of the real file.
macro_rules! forward {
    ($file:expr, $method:ident $(, $argument:expr)*) => {{
        let real = real($file);
        ((*(*real).pMethods).$method.unwrap())(real $(, $argument)*)
    }};
}

macro_rules! forwarded {
    ($($name:ident = $method:ident($($argument:ident: $type:ty),*);)*) => {
        $(unsafe extern "C" fn $name(file: *mut ffi::sqlite3_file $(, $argument: $type)*) -> c_int {
            unsafe { forward!(file, $method $(, $argument)*) }
        })*
    };
}

forwarded! {
    close = xClose();
    read = xRead(to: *mut c_void, count: c_int, offset: ffi::sqlite3_int64);
    file_size = xFileSize(size: *mut ffi::sqlite3_int64);
    lock = xLock(level: c_int);
    unlock = xUnlock(level: c_int);
    check_reserved_lock = xCheckReservedLock(result: *mut c_int);
    file_control = xFileControl(op: c_int, argument: *mut c_void);
    sector_size = xSectorSize();
    characteristics = xDeviceCharacteristics();
    shm_map = xShmMap(page: c_int, size: c_int, extend: c_int, at: *mut *mut c_void);
    shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int);
    shm_unmap = xShmUnmap(delete: c_int);
}

unsafe extern "C" fn shm_barrier(file: *mut ffi::sqlite3_file) {
    unsafe { forward!(file, xShmBarrier) }
}

unsafe extern "C" fn write(
    file: *mut ffi::sqlite3_file,
    from: *const c_void,
    count: c_int,
    offset: ffi::sqlite3_int64,
) -> c_int {
    unsafe {
        let this = &*file.cast::<File>();
        let recorder = &*this.recorder;
        let mut data =
            std::slice::from_raw_parts(from.cast::<u8>(), usize::try_from(count).unwrap()).to_vec();
        let failed = recorder.fails(this.kind, &recorder.failing_writes);
        if failed {
            // Half of it gets there.
            data.truncate(data.len() / 2);
        }
        let count = c_int::try_from(data.len()).unwrap();
        let result = forward!(file, xWrite, data.as_ptr().cast(), count, offset);
        let op = Op::Write {
            file: this.kind,
            offset: usize::try_from(offset).unwrap(),
            data,
        };
        recorder.note(this.kind, op);
        if failed {
            ffi::SQLITE_IOERR_WRITE
        } else {
            result
        }
    }
}

unsafe extern "C" fn truncate(file: *mut ffi::sqlite3_file, size: ffi::sqlite3_int64) -> c_int {
    unsafe {
        let this = &*file.cast::<File>();
        let op = Op::Truncate {
            file: this.kind,
            size: usize::try_from(size).unwrap(),
        };
        (*this.recorder).note(this.kind, op);
        forward!(file, xTruncate, size)
    }
}

unsafe extern "C" fn sync(file: *mut ffi::sqlite3_file, _flags: c_int) -> c_int {
    unsafe {
        let this = &*file.cast::<File>();
        let recorder = &*this.recorder;
        if recorder.fails(this.kind, &recorder.failing_syncs) {
            recorder.note(this.kind, Op::LostSync { file: this.kind });
            return ffi::SQLITE_IOERR_FSYNC;
        }
        recorder.note(this.kind, Op::Sync { file: this.kind });
        ffi::SQLITE_OK
    }
}

static METHODS: ffi::sqlite3_io_methods = ffi::sqlite3_io_methods {
    iVersion: 2,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(characteristics),
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: None,
    xUnfetch: None,
};

/// What the layer knows: the layer below, and the recorder.
struct Layer {
    below: *mut ffi::sqlite3_vfs,
    recorder: *const Recorder,
}

unsafe fn below(vfs: *mut ffi::sqlite3_vfs) -> *mut ffi::sqlite3_vfs {
    unsafe { (*(*vfs).pAppData.cast::<Layer>()).below }
}

unsafe extern "C" fn open(
    vfs: *mut ffi::sqlite3_vfs,
    name: ffi::sqlite3_filename,
    file: *mut ffi::sqlite3_file,
    flags: c_int,
    out: *mut c_int,
) -> c_int {
    unsafe {
        let layer = &*(*vfs).pAppData.cast::<Layer>();
        let result = ((*layer.below).xOpen.unwrap())(layer.below, name, real(file), flags, out);
        let this = &mut *file.cast::<File>();
        this.base.pMethods = match (*real(file)).pMethods.is_null() {
            true => std::ptr::null(),
            false => &raw const METHODS,
        };
        this.recorder = layer.recorder;
        this.kind = match name.is_null() {
            true => Kind::Other,
            false => match CStr::from_ptr(name).to_string_lossy() {
                name if name.ends_with("/state.db") => Kind::Database,
                name if name.ends_with("/state.db-wal") => Kind::Log,
                _ => Kind::Other,
            },
        };
        result
    }
}

macro_rules! forwarded_vfs {
    ($($name:ident = $method:ident($($argument:ident: $type:ty),*);)*) => {
        $(unsafe extern "C" fn $name(vfs: *mut ffi::sqlite3_vfs $(, $argument: $type)*) -> c_int {
            unsafe {
                let below = below(vfs);
                ((*below).$method.unwrap())(below $(, $argument)*)
            }
        })*
    };
}

forwarded_vfs! {
    delete = xDelete(name: *const c_char, sync: c_int);
    access = xAccess(name: *const c_char, flags: c_int, result: *mut c_int);
    full_pathname = xFullPathname(name: *const c_char, count: c_int, to: *mut c_char);
    randomness = xRandomness(count: c_int, to: *mut c_char);
    sleep = xSleep(microseconds: c_int);
    current_time = xCurrentTime(to: *mut f64);
    last_error = xGetLastError(count: c_int, to: *mut c_char);
    current_time_int64 = xCurrentTimeInt64(to: *mut ffi::sqlite3_int64);
}

/// Registers a layer of this name. It and its recorder stay for the rest of the process.
pub fn register(name: &str, seed: u64) -> &'static Recorder {
    let recorder: &'static Recorder = Box::leak(Box::new(Recorder {
        ops: Mutex::default(),
        random: Mutex::new(SmallRng::seed_from_u64(seed)),
        failing_syncs: AtomicU32::new(0),
        failing_writes: AtomicU32::new(0),
        failures: AtomicU32::new(0),
    }));
    unsafe {
        let below = ffi::sqlite3_vfs_find(std::ptr::null());
        assert!(!below.is_null(), "SQLite has no file layer");
        let mut vfs: ffi::sqlite3_vfs = std::mem::zeroed();
        vfs.iVersion = 2;
        vfs.szOsFile = c_int::try_from(size_of::<File>()).unwrap() + (*below).szOsFile;
        vfs.mxPathname = (*below).mxPathname;
        vfs.zName = CString::new(name).unwrap().into_raw();
        vfs.pAppData = Box::into_raw(Box::new(Layer { below, recorder })).cast();
        vfs.xOpen = Some(open);
        vfs.xDelete = Some(delete);
        vfs.xAccess = Some(access);
        vfs.xFullPathname = Some(full_pathname);
        vfs.xRandomness = Some(randomness);
        vfs.xSleep = Some(sleep);
        vfs.xCurrentTime = Some(current_time);
        vfs.xGetLastError = Some(last_error);
        vfs.xCurrentTimeInt64 = Some(current_time_int64);
        let result = ffi::sqlite3_vfs_register(Box::into_raw(Box::new(vfs)), 0);
        assert_eq!(result, ffi::SQLITE_OK);
    }
    recorder
}
