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

// file is the open file of records. When it grows all its bytes are written, so that they
// have their place on the disk, and a store to the mapping cannot fail for want of space.
// Nothing is read from the mapping except to be written: what somebody else does to the file
// changes nothing here.
type file struct {
	*os.File
	records int
	free    []int                              // numbers of free records
	memory  []byte                             // the mapping of the whole file; nil without records
	writing func(number int, there, b *record) // called before each store; for tests
}

func (f *file) size() int64 { return headerSize + int64(f.records)*recordSize }

// grow adds n free records. After an error the file has the size of before.
func (f *file) grow(n int) error {
	all := make([]byte, 0, n*recordSize)
	for i := range n {
		var b record
		// A record that is free needs a valid checksum as well: otherwise a file full of
		// zeros would pass for an empty one.
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
		// Back to whole records, as the header says.
		return errors.Join(err, f.Truncate(f.size()))
	}
	for i := range n {
		f.free = append(f.free, f.records-1-i)
	}
	return nil
}

// mapRecords maps the file with its present size.
func (f *file) mapRecords() error {
	if f.records == 0 {
		return nil
	}
	memory, err := unix.Mmap(int(f.Fd()), 0, int(f.size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return fmt.Errorf("mapping it: %w", err)
	}
	old := f.memory
	// The new mapping comes first: the old one is in use until then.
	f.memory = memory
	return unmap(old)
}

func unmap(memory []byte) error {
	if memory == nil {
		return nil
	}
	return unix.Munmap(memory)
}

// close unmaps and closes the file.
func (f *file) close() error {
	err := unmap(f.memory)
	f.memory = nil
	return errors.Join(err, f.Close())
}

// store writes a record into the mapping. The kernel faults where the file was truncated by
// somebody, or where a copy-on-write file system has no room: SetPanicOnFault turns that into
// a panic, and it is an error here.
//
// The order of the stores is that of the format: see record.go.
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
		// From here until the last store the record is invalid by its word.
		word.Store(littleEndian(marker(there, b)))
		copy(there[contentAt:], b[contentAt:])
	}
	word.Store(littleEndian(b.word()))
	return nil
}

// marker returns the word of a record while its content changes.
func marker(there, b *record) uint64 {
	if there[0] == kindBlock && b[0] == kindBlock {
		return beingChanged
	}
	return beingWritten
}

// littleEndian returns the word that has v's little-endian bytes in memory.
func littleEndian(v uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], v)
	return binary.NativeEndian.Uint64(b[:])
}

// still returns an error where somebody has removed, replaced or truncated the file.
func (f *file) still(path string) error {
	mine, err := f.Stat()
	if err != nil {
		return err
	}
	there, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	// Writes would go to a file without a name.
	case !os.SameFile(mine, there):
		return errors.New("another file is in its place")
	case mine.Size() < f.size():
		return fmt.Errorf("it was truncated from %d to %d bytes", f.size(), mine.Size())
	}
	return nil
}
