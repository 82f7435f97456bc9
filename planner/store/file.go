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

// lockWait is how long OpenFile waits for another process that has the file open, such as a
// predecessor that is about to end.
const lockWait = 5 * time.Second

// File is a store in one file on disk, of bbolt's. Each Write is one transaction and waits for the
// disk, so callers should batch small entries.
//
// Reads return exactly the entries that were written: each value has a checksum, and an inventory
// shows whether any is missing. The whole file is verified when it is opened.
//
// bbolt reads through a memory mapping. If the file is cut or overwritten by somebody else while it
// is open, bbolt panics or the kernel raises a fault; guarded turns both into ErrDamaged, and the
// file is not written from then on.
type File struct {
	db *bbolt.DB
	// The file that bbolt has open; used to see its size.
	file *os.File
	path string

	// Serializes writers and guards the rest.
	mu sync.Mutex
	// size is the largest size seen. bbolt never shrinks a file.
	size      int64
	inventory inventory // of what the file has
	// damaged is set once, when damage is found while the file is in use. All later writes fail
	// with it.
	damaged error
}

// OpenFile opens the store in a file, and creates the file and its folder if they do not exist. It
// locks the file against other processes, waits up to lockWait for the lock, and reads all of it.
// It returns ErrDamaged if the file does not hold what was written to it.
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
		return nil, fmt.Errorf("store %s is damaged, or not a psidecar store: %w; restore a copy, or, once no job with displaced keys is running, move it away to start with an empty one", path, err)
	}
	if err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", path, err)
	}
	if err := f.createFile(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), f.db.Close())
	}
	return f, nil
}

// openBolt opens a file with bbolt; open opens the file itself. The freelist is not stored
// (NoFreelistSync): bbolt rebuilds it when it opens the file, and each write is smaller.
func openBolt(path string, open func(string, int, os.FileMode) (*os.File, error)) (*bbolt.DB, error) {
	return bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true, OpenFile: open})
}

// create makes an empty store if no file is there. It is made under another name and linked into
// place, so that an empty or incomplete file is never found under path: if one is, it was cut, and
// is reported as damaged instead of taken for a new store.
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
	// A link fails if another process was faster, where a rename would replace its file.
	if err := os.Link(temporary.Name(), path); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return syncFolder(filepath.Dir(path))
}

// syncFolder makes a new name in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// createFile creates the buckets that a new file lacks, and seals the entries of a file from a
// psidecar that had no checksums. If the disk is full, a file with entries can be read all the
// same, and the first write tries again.
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

// update runs change in a transaction that also writes the inventory. Memory takes over the new
// inventory only if the transaction was committed.
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

// transact runs one transaction. If bbolt panics, the transaction stays open on purpose: to roll it
// back bbolt would read the damaged file again, in a goroutine that nothing guards. The file is not
// used any more then.
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

// shrunk returns ErrDamaged if the file is smaller than it was: somebody has cut it. It is asked
// before each write, since a write to a page beyond the end would extend the file with zeros in
// between.
func (f *File) shrunk() error {
	info, err := f.file.Stat()
	if errors.Is(err, os.ErrClosed) {
		return nil // bbolt says so
	}
	if err != nil {
		return err
	}
	if info.Size() < f.size {
		return fmt.Errorf("%w: it was truncated from %d to %d bytes", ErrDamaged, f.size, info.Size())
	}
	f.size = info.Size()
	return nil
}

// prepare returns the bucket of entries. If the file has no inventory yet it creates one and seals
// all entries, in the caller's transaction.
func prepare(tx *bbolt.Tx) (*bbolt.Bucket, error) {
	entries, err := tx.CreateBucketIfNotExists(entriesBucket)
	if err != nil || tx.Bucket(inventoryBucket) != nil {
		return entries, err
	}
	if _, err := tx.CreateBucket(inventoryBucket); err != nil {
		return nil, err
	}
	// A bucket must not be changed while it is iterated.
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

// filled is the size in bytes to which a new file is extended. With space allocated in advance a
// write does not change the file's metadata, which halves its time.
const filled = 1 << 20

// fill extends a file with zeros up to filled. If the disk has no room the file stays as it was.
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

// Each implements Store. It runs in one read transaction, so it sees a consistent state while
// others write.
func (f *File) Each(ctx context.Context, each func(string, []byte) error) error {
	// The error of each or ctx, which is returned as it is.
	var failed error
	err := guarded(func() error {
		return f.db.View(func(tx *bbolt.Tx) error {
			// An old file that could not be sealed yet.
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

// Write implements Store. The entries of a call are one transaction: all of them are written or
// none.
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

// replace writes an entry and updates the inventory. It verifies the value that it replaces, whose
// digest leaves the inventory; that of a damaged one would make the inventory wrong for good.
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

// Close implements Store. A damaged file stays open and locked until the process ends, since bbolt
// would read it to close it.
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
