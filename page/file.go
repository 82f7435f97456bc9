package page

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A NameFile is a NameMap that is read again when its file changes, and that can be replaced at
// run time. The nil NameFile names nothing. It is safe for concurrent use.
type NameFile struct {
	path string // empty: without a file, there are only names that are set

	mu     sync.Mutex // guards what follows
	names  *NameMap
	set    bool      // names are from Set, not from the file
	stamp  string    // of the version of the file that was read last, or that Set superseded
	looked time.Time // when the file was last checked
}

// OpenNames reads a file of names. With an empty path nothing has a name until names are set.
func OpenNames(path string) (*NameFile, error) {
	if path == "" {
		return &NameFile{}, nil
	}
	f := &NameFile{path: path, stamp: stampOf(path), looked: time.Now()}
	var err error
	f.names, err = read(path)
	return f, err
}

// read reads and parses a file of names. Its errors name the file.
func read(path string) (*NameMap, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := ParseNames(path, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// lookEvery is the least interval between checks of the file.
const lookEvery = time.Second

// Map returns the present names. A file that has changed is read at most once a second; if it
// has an error, which is logged, the previous names stay. It may block on the file.
func (f *NameFile) Map() *NameMap {
	if f == nil {
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.path == "" || time.Since(f.looked) < lookEvery {
		return f.names
	}
	f.looked = time.Now()
	now := stampOf(f.path)
	if now == f.stamp {
		return f.names
	}
	// Set before reading: a file with an error is logged once for each version, not every
	// second.
	f.stamp = now
	m, err := read(f.path)
	if err != nil {
		slog.Warn("cannot load key names; keeping the current ones", "error", err)
		return f.names
	}
	if f.set {
		slog.Info("key names reloaded from the changed file", "file", f.path, "ranges", len(m.ranges))
	}
	f.names, f.set = m, false
	return m
}

// Set replaces the names until the file changes.
func (f *NameFile) Set(m *NameMap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names, f.set = m, true
	if f.path != "" {
		// The present version of the file is older than these names.
		f.stamp, f.looked = stampOf(f.path), time.Now()
	}
}

// stampOf returns a text that differs between versions of a file: time and size.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}
