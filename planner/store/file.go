package store

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// lockWait is how long OpenFile waits for another process that has the file open, such as a
	// predecessor that is about to end.
	lockWait = 5 * time.Second
	// growBy is by how many bytes a file is extended at a time. A write within the file changes none
	// of its metadata, which halves the time that it takes.
	growBy = 256 << 10
	// slack is how many bytes of entries that were replaced since a log may have, beside as many as
	// it needs.
	slack = 1 << 20
	// chunk is about how many bytes a record has when a file is rewritten.
	chunk = 1 << 20
)

// File is a store in one file on disk: a log of writes (log.go), rewritten when most of it is out of
// date. The entries are in memory too, and the file is read only by OpenFile.
//
// Each Write waits for the disk twice, so callers should batch small entries.
type File struct {
	path    string
	lock    *os.File
	entries Memory

	mu   sync.Mutex // serializes writers and guards the rest
	file *os.File
	head header // the newest in the file
	size int64  // of the file, as far as it was extended
	// The end of the log beyond which it is rewritten.
	limit uint64
	// torn says that the last write may be in the file or not. Then the file is rewritten before
	// anything else is written.
	torn bool
}

// OpenFile opens the store in a file, and creates the file and its folder if they do not exist. It
// waits up to lockWait for another process to release the file, and reads all of it.
//
// A file that does not have what was written to it, or was written by a psidecar that had another
// format, is renamed to PATH.damaged, in place of an earlier one, and the store begins empty.
// Proxies notice that, and teach their planner where the keys of their jobs are.
func OpenFile(path string) (*File, error) {
	f := &File{path: path}
	if err := f.open(); err != nil {
		return nil, errors.Join(fmt.Errorf("opening the store %s: %w", path, err), f.Close())
	}
	return f, nil
}

func (f *File) open() error {
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return err
	}
	if err := f.takeLock(); err != nil {
		return err
	}
	err := f.load()
	if errors.Is(err, errUnusable) {
		aside := f.path + ".damaged"
		if err := os.Rename(f.path, aside); err != nil {
			return fmt.Errorf("moving it aside: %w", err)
		}
		slog.Error("the planner's store was moved aside; beginning with an empty one. Proxies of running jobs teach it where keys are; codec rules that were set with psidecar plan must be set again",
			"store", f.path, "moved_to", aside, "error", err)
		f.entries = Memory{}
	}
	if errors.Is(err, errUnusable) || errors.Is(err, fs.ErrNotExist) {
		return f.rewrite()
	}
	return err
}

// takeLock locks the store against other processes, by a file that is never replaced.
func (f *File) takeLock() (err error) {
	if f.lock, err = os.OpenFile(f.path+".lock", os.O_RDWR|os.O_CREATE, 0o600); err != nil {
		return err
	}
	for end := time.Now().Add(lockWait); ; time.Sleep(50 * time.Millisecond) {
		err := unix.Flock(int(f.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case !errors.Is(err, unix.EWOULDBLOCK):
			return err
		case time.Now().After(end):
			return errors.New("it is open in another process; stop that process, or use another file")
		}
	}
}

// load opens the file and reads it.
func (f *File) load() (err error) {
	// O_DSYNC: what a write has returned from is on disk.
	if f.file, err = os.OpenFile(f.path, os.O_RDWR|unix.O_DSYNC, 0); err != nil {
		return err
	}
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if err := f.recognize(info); err != nil {
		return err
	}
	if f.head, err = readHeaders(f.file); err != nil {
		return err
	}
	f.size = info.Size()
	if err := readLog(f.file, f.size, f.head, f.entries.apply); err != nil {
		return err
	}
	needs := 0
	for name, value := range f.entries.entries {
		needs += len(name) + len(value)
	}
	f.limit = 2*uint64(needs) + slack
	return nil
}

// recognize returns an error for what is not a store, which is left alone: the path may be a
// mistake. A file of which one header is left is a store, and so is one that was cut within the
// first.
func (f *File) recognize(info fs.FileInfo) error {
	if !info.Mode().IsRegular() {
		return fmt.Errorf("it is no file: %v", info.Mode())
	}
	begins := make([]byte, headerStep+len(magic))
	n, err := f.file.ReadAt(begins, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	// bbolt's magic number follows the header of its first page, in the machine's byte order.
	const boltAt, boltMagic = 16, 0xED0CDAED
	switch {
	case strings.HasPrefix(magic, string(begins[:min(n, len(magic))])), string(begins[headerStep:]) == magic:
		return nil
	case binary.NativeEndian.Uint32(begins[boltAt:]) == boltMagic:
		return fmt.Errorf("%w: it was written by an earlier psidecar, in a format that this one does not read", errUnusable)
	}
	return errors.New("it is not a psidecar store; move it away, or use another file")
}

// Each implements Store.
func (f *File) Each(ctx context.Context, each func(string, []byte) error) error {
	return f.entries.Each(ctx, each)
}

// Write implements Store. The entries of a call are one record: all of them are written or none.
func (f *File) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.write(entries); err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, f.path, err)
	}
	f.entries.apply(entries)
	if f.head.end <= f.limit {
		return nil
	}
	if err := f.rewrite(); err != nil {
		slog.Warn("cannot rewrite the planner's store in less space; it grows until that succeeds", "store", f.path, "error", err)
		f.limit = f.head.end + slack
	}
	return nil
}

// write appends a record to the log, and then the header that covers it. The caller holds f.mu.
func (f *File) write(entries []Entry) error {
	info, err := f.file.Stat()
	if err != nil {
		return err
	}
	if f.torn || info.Size() < f.size { // or somebody has cut it
		if err := f.rewrite(); err != nil {
			return err
		}
	}
	record := f.head.appendRecord(nil, entries)
	next := f.head.next(record)
	if missing := int64(next.end) - f.size; missing > 0 {
		zeros := make([]byte, (missing+growBy-1)/growBy*growBy)
		if _, err := f.file.WriteAt(zeros, f.size); err != nil {
			return err
		}
		f.size += int64(len(zeros))
	}
	if _, err := f.file.WriteAt(record, int64(f.head.end)); err != nil {
		return err
	}
	if _, err := f.file.WriteAt(next.encode(), next.at()); err != nil {
		f.torn = true
		return err
	}
	f.head = next
	return nil
}

// rewrite replaces the file by a new one with nothing but the present entries. A kill leaves the old
// one or the new one. The caller holds f.mu, or nobody else has f yet.
func (f *File) rewrite() error {
	file, err := os.OpenFile(f.path+".new", os.O_RDWR|os.O_CREATE|os.O_TRUNC|unix.O_DSYNC, 0o600)
	if err != nil {
		return err
	}
	next := &File{file: file}
	err = next.fill(f.entries.entries)
	if err == nil {
		err = os.Rename(file.Name(), f.path)
	}
	if err != nil {
		return errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	f.file.Close() // nothing of it is needed any more
	f.file, f.head, f.size, f.limit = next.file, next.head, next.size, 2*next.head.end+slack
	// Until its name is durable the new file may be lost, with all that is written to it.
	err = syncFolder(filepath.Dir(f.path))
	f.torn = err != nil
	return err
}

// fill writes entries to a new file.
func (f *File) fill(entries map[string][]byte) error {
	f.head, f.size = header{number: 1, end: logAt}, logAt
	if err := f.file.Truncate(f.size); err != nil {
		return err
	}
	if _, err := f.file.WriteAt(f.head.encode(), f.head.at()); err != nil {
		return err
	}
	var part []Entry
	size := 0
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		part = append(part, Entry{name, entries[name]})
		if size += len(name) + len(entries[name]); size < chunk {
			continue
		}
		if err := f.write(part); err != nil {
			return err
		}
		part, size = part[:0], 0
	}
	return f.write(part) // also without any entry: both headers have to be there
}

// syncFolder makes a new name in a folder durable.
func syncFolder(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// Close implements Store.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	var err error
	if f.file != nil {
		err = f.file.Close()
	}
	// Last, since the next process may have the file from here on.
	if f.lock != nil {
		err = errors.Join(err, f.lock.Close())
	}
	if err != nil {
		return fmt.Errorf("closing the store %s: %w", f.path, err)
	}
	return nil
}
