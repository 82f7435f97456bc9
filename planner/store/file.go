package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/bbolt"
)

// lockWait is how long another process that has the file is waited for.
const lockWait = 5 * time.Second

// File is a store in one file on disk (bbolt). Each Write waits for the disk, so
// callers should batch small entries.
//
// Reads return exactly the entries that were written: each value has a checksum,
// and an inventory shows whether any is missing. The whole file is checked when it
// is opened.
type File struct {
	db   *bbolt.DB
	file *os.File // bbolt's
	path string

	mu        sync.Mutex // of writers
	size      int64
	inventory inventory // of what the file has
	damaged   error     // found while it was in use; it is not written any more
}

// OpenFile opens the store in the file, which is made if it is not there. One
// process has it at a time. A file that does not hold what was written to it
// gives ErrDamaged.
func OpenFile(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", path, err)
	}
	if err := create(path); err != nil {
		return nil, fmt.Errorf("making the store %s: %w", path, err)
	}
	f := &File{path: path}
	err := guarded(func() (err error) {
		f.db, err = openBolt(path, f.openInspected)
		return err
	})
	if errors.Is(err, ErrDamaged) {
		return nil, fmt.Errorf("store %s is damaged, or no store of psidecar's: %w; put a copy of it in its place, or move it away to begin with an empty one once no job runs whose keys are displaced", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", path, err)
	}
	if err := f.createFile(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), f.db.Close())
	}
	return f, nil
}

func openBolt(path string, open func(string, int, os.FileMode) (*os.File, error)) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, OpenFile: open})
}

// create makes a file where there is none: elsewhere first, so that one that is
// empty or begun is never found here unless it was cut.
func create(path string) error {
	if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	temporary, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".new-*")
	if err != nil {
		return err
	}
	defer os.Remove(temporary.Name())
	if err := temporary.Close(); err != nil {
		return err
	}
	db, err := openBolt(temporary.Name(), os.OpenFile)
	if err != nil {
		return err
	}
	if err := db.Close(); err != nil {
		return err
	}
	if err := os.Link(temporary.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder has the names in a folder written to the disk.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// createFile makes what a new file, or one of a psidecar without checksums, lacks.
// Where the disk is full the first write tries again.
func (f *File) createFile() error {
	var entries, checked bool
	err := guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			entries, checked = tx.Bucket(entriesBucket) != nil, tx.Bucket(inventoryBucket) != nil
			return nil
		})
	})
	if err != nil {
		return err
	}
	if !checked {
		if err := f.update(func(*bbolt.Bucket, *inventory) error { return nil }); err != nil && !entries {
			return err
		}
	}
	return fill(f.path)
}

// update changes the entries, and the inventory with them.
func (f *File) update(change func(*bbolt.Bucket, *inventory) error) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damaged == nil {
		f.damaged = f.shrunk()
	}
	if f.damaged != nil {
		return f.damaged
	}
	next := f.inventory
	err := guarded(func() error { return f.transact(change, &next) })
	if errors.Is(err, ErrDamaged) {
		f.damaged = err
	}
	if err == nil {
		f.inventory = next
	}
	return err
}

// transact is one transaction. One that panics stays open: bbolt would read the
// whole damaged file to roll it back, in a goroutine where nobody is guarded.
func (f *File) transact(change func(*bbolt.Bucket, *inventory) error, next *inventory) error {
	tx, err := f.db.Begin(true)
	if err != nil {
		return err
	}
	b, err := prepare(tx)
	if err == nil {
		err = change(b, next)
	}
	if err == nil {
		err = tx.Bucket(inventoryBucket).Put(inventoryKey, next.encode())
	}
	if err == nil {
		return tx.Commit()
	}
	if errors.Is(err, ErrDamaged) {
		return err
	}
	return errors.Join(err, tx.Rollback())
}

// shrunk reports that somebody else has cut the file. bbolt never does.
func (f *File) shrunk() error {
	info, err := f.file.Stat()
	if errors.Is(err, os.ErrClosed) {
		return nil // bbolt says so
	}
	if err != nil {
		return err
	}
	if info.Size() < f.size {
		return fmt.Errorf("%w: somebody has cut it from %d to %d bytes", ErrDamaged, f.size, info.Size())
	}
	f.size = info.Size()
	return nil
}

// prepare returns the bucket of entries, which are sealed from then on.
func prepare(tx *bbolt.Tx) (*bbolt.Bucket, error) {
	entries, err := tx.CreateBucketIfNotExists(entriesBucket)
	if err != nil || tx.Bucket(inventoryBucket) != nil {
		return entries, err
	}
	if _, err := tx.CreateBucket(inventoryBucket); err != nil {
		return nil, err
	}
	old := map[string][]byte{}
	err = entries.ForEach(func(name, value []byte) error {
		old[string(name)] = seal(name, value)
		return nil
	})
	for name, value := range old {
		if err == nil {
			err = entries.Put([]byte(name), value)
		}
	}
	return entries, err
}

// filled is how much of the disk a file takes from the start, in bytes.
// Preallocated space halves the time of a write: the file's metadata does not
// change.
const filled = 1 << 20

// fill lengthens a file with zeros, which bbolt uses before it grows the file.
// Where the disk has no room for them the file stays as it is.
func fill(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil || info.Size() >= filled {
		return errors.Join(err, f.Close())
	}
	_, err = f.Write(make([]byte, filled-info.Size()))
	if err = errors.Join(err, f.Sync()); err != nil {
		err = f.Truncate(info.Size())
	}
	return errors.Join(err, f.Close())
}

// Each implements Store.
func (f *File) Each(ctx context.Context, each func(string, []byte) error) error {
	var failed error // of each, or ctx
	err := guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			raw := tx.Bucket(inventoryBucket) == nil
			return tx.Bucket(entriesBucket).ForEach(func(name, value []byte) error {
				if failed = ctx.Err(); failed != nil {
					return failed
				}
				if !raw {
					var err error
					if value, err = unseal(name, value); err != nil {
						return fmt.Errorf("%w: %w", ErrDamaged, err)
					}
				}
				failed = each(string(name), value)
				return failed
			})
		})
	})
	if err != nil && failed == nil {
		return fmt.Errorf("reading the store %s: %w", f.path, err)
	}
	return err
}

// Write implements Store. All entries of a call are written, or none.
func (f *File) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f.update(func(b *bbolt.Bucket, v *inventory) error {
		for _, e := range entries {
			if err := replace(b, v, e); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, f.path, err)
	}
	return nil
}

// replace writes an entry in place of the one of the same name.
func replace(b *bbolt.Bucket, v *inventory, e Entry) error {
	name := []byte(e.Name)
	if before := b.Get(name); before != nil {
		old, err := unseal(name, before)
		if err != nil {
			return fmt.Errorf("%w: %w", ErrDamaged, err)
		}
		v.remove(name, old)
	}
	if e.Value == nil {
		return b.Delete(name)
	}
	v.addEntry(name, e.Value)
	return b.Put(name, seal(name, e.Value))
}

// Close implements Store. A damaged file stays locked until the process ends.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.damaged != nil {
		return fmt.Errorf("closing the store %s: %w", f.path, f.damaged)
	}
	if err := f.db.Close(); err != nil {
		return fmt.Errorf("closing the store %s: %w", f.path, err)
	}
	return nil
}
