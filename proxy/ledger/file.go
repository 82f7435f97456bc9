package ledger

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// file is the open file. All its bytes were written when it grew, so that they
// have their place on the disk; then its records are mapped, and written without
// a system call. Nothing is ever read from memory that is mapped but to be
// written: what somebody else does to the file changes nothing here.
type file struct {
	*os.File
	records int
	free    []int                              // records
	memory  []byte                             // all of it, nil without records
	writing func(number int, there, b *record) // is told what comes, in tests
}

func (f *file) size() int64 { return headerSize + int64(f.records)*recordSize }

// grow adds free records.
func (f *file) grow(n int) error {
	all := make([]byte, 0, n*recordSize)
	for i := range n {
		var b record
		b.seal(f.records + i)
		all = append(all, b[:]...)
	}
	_, err := f.WriteAt(all, f.size())
	if err == nil {
		f.records += n
		if err = f.mapRecords(); err != nil {
			f.records -= n
		}
	}
	if err != nil {
		return errors.Join(err, f.Truncate(f.size()))
	}
	for i := range n {
		f.free = append(f.free, f.records-1-i)
	}
	return nil
}

// mapRecords maps the file as it is now.
func (f *file) mapRecords() error {
	if f.records == 0 {
		return nil
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(f.size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping it: %w", err)
	}
	old := f.memory
	f.memory = memory
	return unmap(old)
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	return unix.Munmap(memory)
}

func (f *file) close() error {
	err := unmap(f.memory)
	f.memory = nil
	return errors.Join(err, f.Close())
}

// store writes a record. The kernel faults where the file was cut meanwhile, or
// where a disk that copies on writing has no room: that is an error here.
func (f *file) store(number int, b *record) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if _, ok := p.(interface{ Addr() uintptr }); !ok {
				panic(p)
			}
			err = fmt.Errorf("record %d cannot be written: %v", number, p)
		}
	}()
	there := (*record)(f.memory[headerSize+number*recordSize:])
	word := (*atomic.Uint64)(unsafe.Pointer(there))
	if f.writing != nil {
		f.writing(number, there, b)
	}
	if !bytes.Equal(there[contentAt:], b[contentAt:]) {
		word.Store(littleEndian(marker(there, b)))
		copy(there[contentAt:], b[contentAt:])
	}
	word.Store(littleEndian(b.word()))
	return nil
}

// marker is what a record is while its content changes.
func marker(there, b *record) uint64 {
	if there[0] == kindBlock && b[0] == kindBlock {
		return beingChanged
	}
	return beingWritten
}

// littleEndian returns the word whose bytes in memory are v's in little endian.
func littleEndian(v uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// still reports what somebody else has done to the file.
func (f *file) still(path string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !os.SameFile(mine, there):
		return errors.New("another file is in its place")
	case mine.Size() < f.size():
		return fmt.Errorf("somebody has cut it from %d to %d bytes", f.size(), mine.Size())
	}
	return nil
}
