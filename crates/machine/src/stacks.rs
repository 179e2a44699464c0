//! The current call stack of another thread, taken without its cooperation.
//!
//! ```text
//! ask(thread) ──signal──► handler, on that thread: copies registers and stack ──► take() ──► Sample
//!                                           Sample::frames: unwound later by the caller ──► name(address)
//! ```
//!
//! - B1: the handler makes no allocation, takes no lock and does not unwind. It copies at most [`WORDS`]
//!   between the stack pointer and the end of the stack, which the thread noted earlier ([`observable`]).
//! - B2: one sample at a time. The buffer belongs to the caller of `ask`, then to the handler, then to the
//!   caller again.
//! - B3: unwinding reads only the copy, and the unwind tables, which stay mapped while the process lives.
//!
//! Cost: some 5 µs for the thread asked, some 50 µs for [`Sample::frames`]. The first [`name`] reads the
//! symbols of the executable: up to some 100 ms, and 8 bytes per function from then on.

use framehop::{
    CacheNative, ExplicitModuleSectionInfo, Module, MustNotAllocateDuringUnwind, Unwinder, UnwinderNative,
};
use object::read::{Object, ObjectSymbol};
use std::cell::{Cell, UnsafeCell};
use std::ffi::{c_int, c_void};
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};

/// Words of a stack that are copied.
const WORDS: usize = 4096;
/// Frames of a sample.
const FRAMES: usize = 48;

const IDLE: u32 = 0;
const ASKED: u32 = 1;
const COPYING: u32 = 2;
const TAKEN: u32 = 3;

static STATE: AtomicU32 = AtomicU32::new(IDLE);
static BUFFER: Buffer =
    Buffer(UnsafeCell::new(Raw { at_ns: 0, pc: 0, sp: 0, fp: 0, lr: 0, len: 0, words: [0; WORDS] }));

struct Raw {
    at_ns: u64,
    pc: u64,
    sp: u64,
    fp: u64,
    lr: u64,
    len: usize,
    words: [u64; WORDS],
}

struct Buffer(UnsafeCell<Raw>);

// SAFETY: STATE decides the user of the buffer (B2): the handler while COPYING, the caller of `ask` while
// TAKEN.
unsafe impl Sync for Buffer {}

thread_local! {
    /// The end of this thread's stack; 0 if it must not be read.
    static STACK_END: Cell<usize> = const { Cell::new(0) };
}

/// A copy of a thread's registers and the top of its stack, to be unwound.
pub struct Sample {
    /// When it was taken ([`stdx::clock::mono_ns`]).
    pub at_ns: u64,
    pc: u64,
    sp: u64,
    fp: u64,
    #[cfg_attr(
        target_arch = "x86_64",
        allow(dead_code, reason = "the return address is on the stack there")
    )]
    lr: u64,
    stack: Box<[u64]>,
}

fn signal() -> c_int {
    libc::SIGRTMIN() + 3
}

/// Lets the calling thread be sampled.
pub fn observable() {
    // SAFETY: the attributes are initialised by the first call, read by the second, and destroyed.
    unsafe {
        let mut attributes: libc::pthread_attr_t = std::mem::zeroed();
        if libc::pthread_getattr_np(libc::pthread_self(), &mut attributes) != 0 {
            return;
        }
        let (mut begin, mut size) = (std::ptr::null_mut(), 0);
        if libc::pthread_attr_getstack(&attributes, &mut begin, &mut size) == 0 {
            STACK_END.set(begin.addr() + size);
        }
        libc::pthread_attr_destroy(&mut attributes);
    }
}

/// Makes samples possible in this process. False if the system refuses.
pub fn install() -> bool {
    stdx::clock::mono_ns();
    let copy: extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void) = copy;
    // SAFETY: a handler of the right type that does only what a handler may (B1).
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = copy as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        libc::sigemptyset(&mut action.sa_mask);
        libc::sigaction(signal(), &action, std::ptr::null_mut()) == 0
    }
}

/// Asks a thread of this process for a sample; [`take`] returns it soon, or never. False if another question
/// is open.
pub fn ask(thread: i32) -> bool {
    if STATE.compare_exchange(IDLE, ASKED, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return false;
    }
    // SAFETY: a plain system call; a thread that is gone is an error.
    let sent = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal()) } == 0;
    if !sent {
        withdraw();
    }
    sent
}

/// Withdraws an open question.
pub fn withdraw() {
    let _ = STATE.compare_exchange(ASKED, IDLE, Ordering::AcqRel, Ordering::Relaxed);
}

/// The answer to the last question, if it is there.
pub fn take() -> Option<Sample> {
    if STATE.load(Ordering::Acquire) != TAKEN {
        return None;
    }
    // SAFETY: while TAKEN the buffer is ours (B2).
    let raw = unsafe { &*BUFFER.0.get() };
    let stack = raw.words[..raw.len.min(WORDS)].into();
    let sample = Sample { at_ns: raw.at_ns, pc: raw.pc, sp: raw.sp, fp: raw.fp, lr: raw.lr, stack };
    STATE.store(IDLE, Ordering::Release);
    Some(sample)
}

/// The handler (B1).
extern "C" fn copy(_: c_int, _: *mut libc::siginfo_t, context: *mut c_void) {
    if STATE.compare_exchange(ASKED, COPYING, Ordering::AcqRel, Ordering::Relaxed).is_err() {
        return;
    }
    // SAFETY: the kernel gives the context of the thread it interrupted; the buffer is ours while COPYING
    // (B2); what lies between the stack pointer and the end of the stack is mapped.
    unsafe {
        let raw = &mut *BUFFER.0.get();
        // `install` has read the clock once: now it is a call that the kernel answers without a switch.
        raw.at_ns = stdx::clock::mono_ns();
        registers(&*context.cast::<libc::ucontext_t>(), raw);
        let (sp, end) = (raw.sp as usize & !7, STACK_END.get());
        raw.len = (end.saturating_sub(sp) / 8).min(WORDS);
        if end != 0 {
            std::ptr::copy_nonoverlapping(sp as *const u64, raw.words.as_mut_ptr(), raw.len);
        }
    }
    STATE.store(TAKEN, Ordering::Release);
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t, raw: &mut Raw) {
    let of = |register: c_int| context.uc_mcontext.gregs[register as usize] as u64;
    (raw.pc, raw.sp, raw.fp, raw.lr) = (of(libc::REG_RIP), of(libc::REG_RSP), of(libc::REG_RBP), 0);
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t, raw: &mut Raw) {
    let machine = &context.uc_mcontext;
    (raw.pc, raw.sp, raw.fp, raw.lr) = (machine.pc, machine.sp, machine.regs[29], machine.regs[30]);
}

#[cfg(target_arch = "x86_64")]
fn unwind_registers(sample: &Sample) -> framehop::UnwindRegsNative {
    framehop::UnwindRegsNative::new(sample.pc, sample.sp, sample.fp)
}

#[cfg(target_arch = "aarch64")]
fn unwind_registers(sample: &Sample) -> framehop::UnwindRegsNative {
    framehop::UnwindRegsNative::new(sample.lr, sample.sp, sample.fp)
}

type Tables = UnwinderNative<&'static [u8], MustNotAllocateDuringUnwind>;

impl Sample {
    /// The addresses of the active functions, innermost first, as far as the copy reaches.
    pub fn frames(&self) -> Vec<u64> {
        static TABLES: OnceLock<Tables> = OnceLock::new();
        let tables = TABLES.get_or_init(tables);
        let mut cache = Box::new(CacheNative::<MustNotAllocateDuringUnwind>::new_in());
        let mut read = |address: u64| {
            let at = address.wrapping_sub(self.sp & !7);
            if address & 7 != 0 { Err(()) } else { self.stack.get(at as usize / 8).copied().ok_or(()) }
        };
        let mut frames = tables.iter_frames(self.pc, unwind_registers(self), &mut cache, &mut read);
        let mut found = Vec::new();
        while found.len() < FRAMES
            && let Ok(Some(frame)) = frames.next()
        {
            found.push(frame.address_for_lookup());
        }
        found
    }
}

/// A part of a loaded image: its address as the file has it, and its bytes.
fn part(base: u64, from: u64, to: u64) -> (std::ops::Range<u64>, &'static [u8]) {
    let (at, len) = ((base + from) as *const u8, (to.saturating_sub(from)) as usize);
    // SAFETY: the callers name parts of segments that are mapped readable; this program unloads no library.
    (from..to, unsafe { std::slice::from_raw_parts(at, len) })
}

/// The unwind tables of everything that is loaded.
fn tables() -> Tables {
    unsafe extern "C" fn add(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
        // SAFETY: the loader gives a valid description; `to` is what was passed below.
        let (info, to) = unsafe { (&*info, &mut *to.cast::<Tables>()) };
        // SAFETY: the loader's headers.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, info.dlpi_phnum.into()) };
        if let Some(module) = module(info.dlpi_addr, headers) {
            to.add_module(module);
        }
        0
    }
    let mut tables = Tables::new();
    // SAFETY: `add` is called before this returns, with what is passed here.
    unsafe { libc::dl_iterate_phdr(Some(add), (&raw mut tables).cast()) };
    tables
}

fn module(base: u64, headers: &[libc::Elf64_Phdr]) -> Option<Module<&'static [u8]>> {
    let loaded = || headers.iter().filter(|header| header.p_type == libc::PT_LOAD);
    let end_of = |address: u64| {
        let holds = |header: &&libc::Elf64_Phdr| {
            (header.p_vaddr..header.p_vaddr + header.p_filesz).contains(&address)
        };
        loaded().find(holds).map(|header| header.p_vaddr + header.p_filesz)
    };
    let code =
        loaded().find(|header| header.p_flags & libc::PF_X != 0 && header.p_flags & libc::PF_R != 0)?;
    let index = headers.iter().find(|header| header.p_type == libc::PT_GNU_EH_FRAME)?;
    let (index_svma, index) = part(base, index.p_vaddr, index.p_vaddr + index.p_memsz);
    // Version 1, and the table at a signed 32-bit distance from the word that says so.
    if index.get(..2)? != [1, 0x1b] {
        return None;
    }
    let away = i32::from_le_bytes(index.get(4..8)?.try_into().ok()?);
    let table = (index_svma.start + 4).wrapping_add_signed(away.into());
    let (eh_frame_svma, eh_frame) = part(base, table, end_of(table)?);
    let (text_svma, text) = part(base, code.p_vaddr, code.p_vaddr + code.p_filesz);
    let from = loaded().map(|header| header.p_vaddr).min()?;
    let to = loaded().map(|header| header.p_vaddr + header.p_memsz).max()?;
    let sections = ExplicitModuleSectionInfo {
        text_svma: Some(text_svma),
        text: Some(text),
        eh_frame_svma: Some(eh_frame_svma),
        eh_frame: Some(eh_frame),
        eh_frame_hdr_svma: Some(index_svma),
        eh_frame_hdr: Some(index),
        ..Default::default()
    };
    Some(Module::new(String::new(), base + from..base + to, base, sections))
}

/// The functions of the executable. Names stay in the mapped file: names that are not read take no memory.
#[derive(Default)]
struct Symbols {
    /// The address at which it is loaded.
    base: u64,
    file: &'static [u8],
    /// Start of each function, and its index in the file's table. Sorted by start.
    functions: Box<[(u32, u32)]>,
}

impl Symbols {
    fn read() -> Option<Symbols> {
        unsafe extern "C" fn first(info: *mut libc::dl_phdr_info, _: usize, to: *mut c_void) -> c_int {
            // SAFETY: as in `tables`; the executable comes first.
            unsafe { *to.cast::<u64>() = (*info).dlpi_addr };
            1
        }
        let mut symbols = Symbols { file: mapped("/proc/self/exe")?, ..Symbols::default() };
        // SAFETY: as in `tables`.
        unsafe { libc::dl_iterate_phdr(Some(first), (&raw mut symbols.base).cast()) };
        let file = object::File::parse(symbols.file).ok()?;
        let functions = || file.symbols().filter(|symbol| symbol.kind() == object::SymbolKind::Text);
        let small = |symbol: object::Symbol| -> Option<(u32, u32)> {
            Some((symbol.address().try_into().ok()?, symbol.index().0.try_into().ok()?))
        };
        let mut list = Vec::with_capacity(functions().count());
        list.extend(functions().filter_map(small));
        list.sort_unstable();
        symbols.functions = list.into_boxed_slice();
        let_go(symbols.file);
        Some(symbols)
    }

    fn name(&self, address: u64) -> Option<String> {
        let address = u32::try_from(address.wrapping_sub(self.base)).ok()?;
        let at = self.functions.partition_point(|(begin, _)| *begin <= address).checked_sub(1)?;
        let (begin, place) = self.functions[at];
        let file = object::File::parse(self.file).ok()?;
        let symbol = file.symbol_by_index(object::SymbolIndex(place as usize)).ok()?;
        (u64::from(address - begin) < symbol.size()).then_some(())?;
        Some(format!("{:#}", rustc_demangle::demangle(symbol.name().ok()?)))
    }
}

/// Maps a file for the life of the process. `None` if it cannot be read, or is empty.
fn mapped(path: &str) -> Option<&'static [u8]> {
    let file = std::fs::File::open(path).ok()?;
    let len = usize::try_from(file.metadata().ok()?.len()).ok()?;
    // SAFETY: a new readable mapping, never ended. A running executable cannot be written or cut (ETXTBSY).
    unsafe {
        let to = std::ptr::null_mut();
        let at = libc::mmap(to, len, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 0);
        (at != libc::MAP_FAILED).then(|| std::slice::from_raw_parts(at.cast::<u8>(), len))
    }
}

/// Drops the pages of a mapped file from memory until they are read again.
fn let_go(file: &'static [u8]) {
    // SAFETY: a mapping of a file that is not written: dropped pages read the same again.
    unsafe { libc::madvise(file.as_ptr().cast_mut().cast(), file.len(), libc::MADV_DONTNEED) };
}

/// The function at an address, or the address if it is unknown (in a library, say). Not for event loops: the
/// first call is slow.
pub fn name(address: u64) -> String {
    static SYMBOLS: OnceLock<Symbols> = OnceLock::new();
    let symbols = SYMBOLS.get_or_init(|| Symbols::read().unwrap_or_default());
    symbols.name(address).unwrap_or_else(|| format!("{address:#x}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicI32;

    static THREAD: AtomicI32 = AtomicI32::new(0);

    #[inline(never)]
    fn a_function_that_is_busy(done: &AtomicU32) -> u64 {
        let mut n = 0u64;
        while done.load(Ordering::Relaxed) == 0 {
            n = std::hint::black_box(n + 1);
        }
        n
    }

    #[inline(never)]
    fn its_caller(done: &AtomicU32) -> u64 {
        a_function_that_is_busy(done) + 1
    }

    #[test]
    #[cfg_attr(miri, ignore = "signals")]
    fn a_busy_thread_is_seen_in_what_it_does() {
        static DONE: AtomicU32 = AtomicU32::new(0);
        assert!(install());
        let thread = std::thread::spawn(|| {
            observable();
            // SAFETY: a plain system call.
            THREAD.store(unsafe { libc::syscall(libc::SYS_gettid) } as i32, Ordering::Release);
            its_caller(&DONE)
        });
        let mut seen = Vec::new();
        while !seen.iter().any(|name: &String| name.ends_with("::a_function_that_is_busy")) {
            let id = THREAD.load(Ordering::Acquire);
            if id == 0 || !ask(id) {
                std::thread::yield_now();
                continue;
            }
            let sample = loop {
                match take() {
                    Some(sample) => break sample,
                    None => std::thread::yield_now(),
                }
            };
            seen = sample.frames().into_iter().map(name).collect();
        }
        assert!(seen.iter().any(|name| name.ends_with("::its_caller")), "{seen:?}");
        assert!(seen.iter().any(|name| name.contains("thread_start") || name.contains("Thread")), "{seen:?}");
        DONE.store(1, Ordering::Relaxed);
        thread.join().unwrap();
        assert!(take().is_none());
    }
}
