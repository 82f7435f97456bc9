// Package mapped keeps numbers and records in a file that survives a kill of the
// process: the residuals of thresholded pushes, and the sections that were sent
// lately.
//
// A [File] is written through mapped memory, without a system call, in transactions.
// Before numbers change, [File.Save] or [File.SaveAt] logs their old values;
// [File.Commit] makes all changes, allocations and frees since the last commit count,
// by one store of eight bytes. After a kill, [Open] finds the file as the last commit
// left it. Nothing that depends on uncommitted changes may leave the process: then
// the next process finds a state that agrees with everything that others have seen.
//
// Room is reserved on the disk before it is mapped, so that a full disk is an error
// of [File.Alloc] and not a fault in the middle of a store. A file that another
// process truncates makes the kernel fault; callers guard themselves by
// [debug.SetPanicOnFault].
//
// Names, places, states and positions have checksums; numbers have none, since
// updating them would cost as much as the work on the numbers. After a kill the page
// cache has every byte that was written. A file of another boot, of which the disk
// may hold parts from several moments, is of no use: its workers have ended with the
// machine. That is also why nothing is ever synced to the disk.
//
// Stores that must not be reordered are atomic: the word that makes something count
// is always the last.
package mapped

import (
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

var (
	// ErrInUse says that a process, perhaps this one, has the file open.
	ErrInUse = errors.New("the file is in use")
	// ErrDamaged says that a file does not hold what was written to it.
	ErrDamaged = errors.New("the file is damaged")
	// ErrOtherBoot says that the machine was restarted since the file was written.
	ErrOtherBoot = errors.New("the file is from before the last reboot")
	// ErrTaken says that what a file held is elsewhere, and that it could not be removed then.
	ErrTaken = errors.New("the file was taken over, and could not be removed")
)

// A file is a page of its own, and behind it segments, each mapped by itself, whose ends
// the page lists. Segments never move, so that extents can be used in place. They hold
// extents one after the other. Numbers are in the machine's byte order: only the machine
// that wrote a file reads it.
//
//	page     magic, id, boot, length of the name u32, name; CRC at 2040; commit
//	         word at 2048; words of the segments' ends from 2056 on
//	extent   CRC u32 of its place and size, kind u32, size u64, born word, dead
//	         word, tag, CRC of kind, tag and place u32; its bytes
//
// A word is a number of 48 bits and 16 bits of checksum, stored at once. The commit word is
// the number of the last transaction that counts. An extent counts if it was born in that
// transaction or before, and is not dead by it. An undo record counts if it is of the
// transaction after it.
const (
	magic       = "psidMAP1"
	takenMagic  = "psidGONE" // of a file that could not be removed
	pageSize    = 4096
	nameAt      = 44
	crcAt       = 2040
	commitAt    = 2048
	segmentsAt  = 2056
	mostSegment = (pageSize - segmentsAt) / 8
	mostName    = crcAt - nameAt

	headSize  = 96
	least     = 64 << 10  // bytes of a segment, at least
	mostExtra = 64 << 20  // bytes of a segment beyond what is asked for, at most
	never     = 1<<48 - 1 // a transaction that is never committed
)

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// seal makes a word of a number below 2^48. The checksum of 16 bits distinguishes a word
// that was stored from whatever else may lie there.
func seal(v uint64) uint64 { return v<<16 | (v*0x9e3779b97f4a7c15^0x5a3c)>>48 }

// unseal is the reverse; ok is false if the checksum does not fit.
func unseal(w uint64) (v uint64, ok bool) { v = w >> 16; return v, seal(v) == w }

// wordAt returns the word at the beginning of b, which must be aligned to 8 bytes.
func wordAt(b []byte) *atomic.Uint64 { return (*atomic.Uint64)(unsafe.Pointer(&b[0])) }

// Tag describes an extent to its owner; this package only keeps it, and covers it by a
// checksum.
type Tag struct {
	A, B    uint64
	C, D, E uint32
	_       uint32
	Sum     uint64
}

// Kind distinguishes extents by their use; 0 is this package's own.
type Kind uint32

const kindUndo Kind = 0

// Extent is room in a file. Its memory is valid until the File is closed or the commit
// after it was freed. A freed extent is reused by Alloc from then on.
type Extent struct {
	kind  Kind
	at    int64  // offset in the file, of the head
	whole []byte // mapped memory, head included
	size  int    // bytes that were asked for; the class may have more
}

// Bytes returns the extent's memory, aligned to 32 bytes, of the size that was asked for.
// Its capacity is the whole extent, see Room.
func (e *Extent) Bytes() []byte { return e.whole[headSize : headSize+e.size] }

// Room returns all bytes of the extent.
func (e *Extent) Room() []byte { return e.whole[headSize:] }

// Options of a [File].
type Options struct {
	// Name says what the file is about, in at most 1996 bytes. It cannot change.
	Name []byte
	// Take asks for n more bytes of the disk and of memory and reports whether they are
	// granted; Give returns them. nil: there is no bound.
	Take func(n int) bool
	Give func(n int)
	// Stepped is called between stores, so that tests can cut a transaction anywhere; nil:
	// it is not.
	Stepped func()
}

// File is an open file. It is not safe for concurrent use.
//
// Invariants: seq is one more than the commit word. free has extents, by size, that no
// commit counts. dying has those that the next commit frees. All undo records of this
// transaction are in undo, in order.
type File struct {
	path string
	id   [16]byte
	opts Options
	file *os.File
	page []byte // mapped

	segments [][]byte // mapped
	ends     []int64
	used     int // bytes of the last segment that have extents

	seq   uint64 // of the transaction under way; the one before is committed
	free  map[int][]*Extent
	dying []*Extent
	undo  []*Extent // the last is in use, those before are full
	noted int       // bytes of the last
	undos uint32    // extents for undo so far
}

// Create makes a file and locks it for this process. It appears under its path atomically,
// complete with its name: before that it has the suffix Unfinished, which a kill may leave
// behind.
func Create(path string, o Options) (f *File, err error) {
	if len(o.Name) > mostName {
		return nil, fmt.Errorf("mapped: a name of %d bytes; at most %d are allowed", len(o.Name), mostName)
	}
	boot, err := bootID()
	if err != nil {
		return nil, err
	}
	if err := o.reserve(pageSize); err != nil {
		return nil, err
	}
	f = &File{path: path, opts: o, seq: 1, free: map[int][]*Extent{}}
	if err := f.create(boot); err != nil {
		if f.file == nil { // Close has nothing to give back
			o.give(pageSize)
		}
		return nil, errors.Join(fmt.Errorf("creating a residual file: %w", err), f.Close())
	}
	return f, nil
}

// create makes the file under its temporary name, locks it before anybody can find
// it, and renames it when its first page is complete.
func (f *File) create(boot [16]byte) (err error) {
	temporary := f.path + Unfinished
	if f.file, err = os.OpenFile(temporary, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600); err != nil {
		return err
	}
	if err = unix.Flock(int(f.file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
		err = reserve(f.file, 0, pageSize)
	}
	if err == nil {
		f.page, err = unix.Mmap(int(f.file.Fd()), 0, pageSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err == nil {
		f.id = newID()
		f.writePage(boot)
		err = os.Rename(temporary, f.path)
	}
	if err != nil {
		err = errors.Join(err, os.Remove(temporary))
	}
	return err
}

// Unfinished is the suffix of files that are still being made.
const Unfinished = ".new"

// writePage writes the first page. Transaction 0 is committed: an empty file is
// valid.
func (f *File) writePage(boot [16]byte) {
	copy(f.page, magic)
	copy(f.page[8:], f.id[:])
	copy(f.page[24:], boot[:])
	putUint32(f.page[40:], uint32(len(f.opts.Name)))
	copy(f.page[nameAt:], f.opts.Name)
	putUint32(f.page[crcAt:], crcOf(f.page[:crcAt]))
	wordAt(f.page[commitAt:]).Store(seal(0))
}

// Path returns the file's path.
func (f *File) Path() string { return f.path }

func (o *Options) reserve(n int) error {
	if o.Take != nil && !o.Take(n) {
		return fmt.Errorf("no room for %d more bytes within the bound", n)
	}
	return nil
}

// Alloc returns an extent of n zeros, which counts from the next commit on. If there is no
// room on the disk or within the bound it fails, and the file is as before.
func (f *File) Alloc(k Kind, t Tag, n int) (*Extent, error) {
	if k == kindUndo {
		return nil, errors.New("mapped: kind 0 is taken")
	}
	return f.alloc(k, t, n)
}

// alloc returns an extent from the free ones, or from the end of the last segment, or
// from a new segment.
func (f *File) alloc(k Kind, t Tag, n int) (*Extent, error) {
	// First fit among the free extents of this size and up to half as much again. A larger
	// one would waste room for as long as the new one lives.
	size := class(n)
	for c := size; c <= size+size/2; c = class(c + 1 - headSize) {
		if list := f.free[c]; len(list) > 0 {
			e := list[len(list)-1]
			f.free[c] = list[:len(list)-1]
			f.reuse(e, k, t, n)
			return e, nil
		}
	}
	if len(f.segments) == 0 || f.used+size > len(f.segments[len(f.segments)-1]) {
		if err := f.grow(size); err != nil {
			return nil, err
		}
	}
	last := f.segments[len(f.segments)-1]
	e := &Extent{kind: k, at: f.length() - int64(len(last)) + int64(f.used), whole: last[f.used : f.used+size : f.used+size], size: n}
	// In this order: what the extent is for, since when it counts, and last the word by
	// which a reader finds it at all. Killed before that, the room still reads as unused.
	putUint64(e.whole[8:], uint64(size))
	e.describe(t)
	f.stepped()
	wordAt(e.whole[16:]).Store(seal(f.seq))
	wordAt(e.whole).Store(e.place())
	f.used += size
	return e, nil
}

// reuse turns a free extent into another one. Its description cannot be replaced by one
// store, so it is born never while that changes: a reader skips it, and finds the extents
// behind it.
func (f *File) reuse(e *Extent, k Kind, t Tag, n int) {
	wordAt(e.whole[16:]).Store(seal(never))
	e.kind, e.size = k, n
	clear(e.Room())
	f.stepped()
	e.describe(t)
	wordAt(e.whole[24:]).Store(0)
	f.stepped()
	wordAt(e.whole[16:]).Store(seal(f.seq))
}

// place is the first word of an extent: a checksum of where it is and how large, and a bit
// that says it exists. It never changes.
func (e *Extent) place() uint64 {
	return uint64(placeSum(e.at, len(e.whole))) | 1<<32
}

func placeSum(at int64, size int) uint32 {
	var b [16]byte
	putUint64(b[:], uint64(at))
	putUint64(b[8:], uint64(size))
	return crcOf(b[:])
}

// describe writes what an extent is for, with a checksum that covers its place as well: an
// extent cannot be mistaken for another one of the same file.
func (e *Extent) describe(t Tag) {
	b := e.whole
	putUint32(b[32:], uint32(e.kind))
	putUint32(b[36:], t.C)
	putUint64(b[40:], t.A)
	putUint64(b[48:], t.B)
	putUint32(b[56:], t.D)
	putUint32(b[60:], t.E)
	putUint64(b[64:], t.Sum)
	putUint64(b[72:], uint64(e.size))
	putUint32(b[80:], describedSum(b, e.at))
}

func describedSum(b []byte, at int64) uint32 {
	return crc32.Update(uint32(at)*2654435761+1, castagnoli, b[32:80])
}

// Free frees an extent with the next commit. Its content must not change any more: if that
// commit does not happen, the extent still counts.
func (f *File) Free(e *Extent) {
	if e != nil {
		f.dying = append(f.dying, e)
	}
}

// Commit makes all that happened since the last one count. The commit word is the only
// store that does: before it all new extents are of the future and all dying ones alive,
// and undo records lead back. Commit cannot fail.
func (f *File) Commit() {
	for _, e := range f.dying {
		wordAt(e.whole[24:]).Store(seal(f.seq))
		f.stepped()
	}
	wordAt(f.page[commitAt:]).Store(seal(f.seq))
	f.stepped()
	// From here on undo records of the old number mean nothing, and are overwritten from
	// the start.
	f.seq++
	f.noted = 0
	for _, e := range f.dying {
		f.free[len(e.whole)] = append(f.free[len(e.whole)], e)
	}
	clear(f.dying)
	f.dying = f.dying[:0]
	// One undo extent is kept for the next transaction. The last is the largest, since each
	// is twice the one before; the others are freed with the next commit.
	if n := len(f.undo); n > 1 { // the last is the largest
		f.dying = append(f.dying, f.undo[:n-1]...)
		f.undo[0] = f.undo[n-1]
		f.undo = f.undo[:1]
	}
}

func (f *File) stepped() {
	if f.opts.Stepped != nil {
		f.opts.Stepped()
	}
}

// Close ends the use of the file, which stays as the last commit left it, and unlocks it.
// The memory of its extents is unmapped: using it afterwards is a fault.
func (f *File) Close() error {
	if f.file == nil {
		return nil
	}
	var err error
	for _, s := range f.segments {
		err = errors.Join(err, unix.Munmap(s))
	}
	if f.page != nil {
		err = errors.Join(err, unix.Munmap(f.page))
	}
	f.opts.give(int(f.length()))
	f.segments, f.page, f.free, f.undo, f.dying = nil, nil, nil, nil, nil
	err = errors.Join(err, f.file.Close())
	f.file = nil
	return err
}

// Remove removes the file and closes it, in this order, so that no other process
// finds it unlocked in between.
func (f *File) Remove() error {
	return errors.Join(os.Remove(f.path), f.Close())
}
