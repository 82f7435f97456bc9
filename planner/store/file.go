package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.etcd.io/bbolt"
	berrors "go.etcd.io/bbolt/errors"
)

// entriesBucket is the one bucket that a file has.
var entriesBucket = []byte("entries")

// lockWait is how long another process that has the file is waited for.
const lockWait = 5 * time.Second

// File is a store in one file on disk (bbolt). Each Write waits for the disk:
// who has many small ones does best to write them together.
type File struct {
	db   *bbolt.DB
	path string
}

// OpenFile opens the store in the file, which is made if it is not there. One
// process has it at a time.
func OpenFile(path string) (*File, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", path, err)
	}
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{Timeout: lockWait, FreelistType: bbolt.FreelistMapType, NoFreelistSync: true})
	switch {
	case errors.Is(err, berrors.ErrTimeout):
		return nil, fmt.Errorf("opening the store %s: another process has it open; end that, or name another file", path)
	case errors.Is(err, berrors.ErrInvalid), errors.Is(err, berrors.ErrVersionMismatch), errors.Is(err, berrors.ErrChecksum):
		return nil, fmt.Errorf("opening the store %s: it is no store of psidecar's, or is damaged (%w); move it away to begin with an empty one", path, err)
	case err != nil:
		return nil, fmt.Errorf("opening the store %s: %w", path, err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, err := tx.CreateBucketIfNotExists(entriesBucket)
		return err
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), db.Close())
	}
	if err := fill(path); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), db.Close())
	}
	return &File{db: db, path: path}, nil
}

// filled is how much of the disk a file takes from the start, in bytes. What is
// written where the file has its place already is on disk in half the time.
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
	return f.db.View(func(tx *bbolt.Tx) error {
		return tx.Bucket(entriesBucket).ForEach(func(name, value []byte) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			return each(string(name), value)
		})
	})
}

// Write implements Store. All entries of a call are written, or none.
func (f *File) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err := f.db.Update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(entriesBucket)
		for _, e := range entries {
			var err error
			if e.Value == nil {
				err = b.Delete([]byte(e.Name))
			} else {
				err = b.Put([]byte(e.Name), e.Value)
			}
			if err != nil {
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

// Close implements Store.
func (f *File) Close() error {
	if err := f.db.Close(); err != nil {
		return fmt.Errorf("closing the store %s: %w", f.path, err)
	}
	return nil
}
