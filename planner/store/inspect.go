package store

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"
)

// The buckets of a file. A file without an inventory is of a psidecar that kept none; its values
// are not sealed.
var (
	entriesBucket   = []byte("entries")
	inventoryBucket = []byte("inventory")
	inventoryKey    = []byte("inventory")
)

// inspect reads a whole file and verifies it: bbolt's structure, the checksum of each entry, and
// the inventory. checked is false for a file of an old psidecar, which has neither. found is the
// inventory of the entries that are there.
func inspect(file io.ReaderAt, size int64) (checked bool, found inventory, err error) {
	var kept *inventory
	var entries, raw bool
	m, err := walk(file, size, func(bucket string, key, value []byte) error {
		switch {
		case bucket == string(inventoryBucket) && key == nil:
			checked = true
		case bucket == string(inventoryBucket) && string(key) == string(inventoryKey):
			v, err := decodeInventory(value)
			kept = &v
			return err
		case bucket == string(entriesBucket) && key == nil:
			entries = true
		case bucket == string(entriesBucket):
			if !sealed(value) {
				raw = true
				found.addEntry(key, value)
				return nil
			}
			checked = true
			value, err := unseal(key, value)
			found.addEntry(key, value)
			return err
		default:
			return fmt.Errorf("bucket %q with an entry %q", bucket, key)
		}
		return nil
	})
	switch {
	case err != nil:
		return false, found, err
	// A file that was never written may be without its buckets: its creator ended between bbolt's
	// first transaction and the next one.
	case !entries && (checked || m.transaction > 1):
		return false, found, errors.New("its entries are not to be found")
	// Entries are sealed all at once, so a mixture means that an old copy of a page came back.
	case checked && raw:
		return false, found, errors.New("some of its entries have no checksum")
	case checked && kept == nil:
		return false, found, errors.New("its inventory is not to be found")
	case checked && found != *kept:
		return false, found, fmt.Errorf("%d entries were found, %d are in its inventory, or others", found.count, kept.count)
	}
	return checked, found, nil
}

// openInspected opens a file for bbolt, locks it and verifies it. bbolt must never map a damaged
// file, and with the lock held nothing that was verified changes afterwards.
func (f *File) openInspected(path string, flag int, mode os.FileMode) (*os.File, error) {
	file, err := os.OpenFile(path, flag, mode)
	if err != nil {
		return nil, err
	}
	err = lock(file)
	if err == nil {
		err = f.inspectFile(file)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	f.file = file
	return file, nil
}

// inspectFile verifies an open file and adopts its inventory.
func (f *File) inspectFile(file *os.File) error {
	info, err := file.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is no file: %v", info.Mode())
	}
	// bbolt would initialize an empty file, and all keys would appear to be at home.
	if info.Size() == 0 {
		return fmt.Errorf("%w: it is empty", ErrDamaged)
	}
	if _, f.inventory, err = inspect(file, info.Size()); err != nil {
		return fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	return nil
}

// errLocked says that another process has the file.
var errLocked = errors.New("it is open in another process; stop that process, or use another file")

// lock takes the lock that bbolt uses. bbolt locks again later and succeeds, since flock locks
// belong to the open file, which is the same.
func lock(file *os.File) error {
	for end := time.Now().Add(lockWait); ; time.Sleep(50 * time.Millisecond) {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(end):
			return errLocked
		}
	}
}

// guarded calls f and turns panics into ErrDamaged, including faults of the memory mapping that
// bbolt reads: the file was cut, or the disk cannot be read. It covers only the calling goroutine.
func guarded(f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%w: %v", ErrDamaged, p)
		}
	}()
	return f()
}
