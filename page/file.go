package page

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A NameFile is a map that is read again when its file changes, and that can be set
// to another. The nil file names nothing.
type NameFile struct {
	path string // empty: there is none, and keys have the names that are set

	mu     sync.Mutex // guards what follows
	names  *NameMap
	set    bool // by Set, not read
	stamp  string
	looked time.Time
}

// OpenNames reads a file. The empty path is no file: nothing has a name until names
// are set.
func OpenNames(path string) (*NameFile, error) {
	if path == "" {
		return &NameFile{}, nil
	}
	f := &NameFile{path: path, stamp: stampOf(path), looked: time.Now()}
	var err error
	f.names, err = read(path)
	return f, err
}

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

// lookEvery is how often the file is looked at, at most.
const lookEvery = time.Second

// NameMap returns what the file says now; what it said last where something is wrong
// with it, which is logged.
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
	f.stamp = now
	m, err := read(f.path)
	if err != nil {
		slog.Warn("the names of keys stay as they were", "error", err)
		return f.names
	}
	if f.set {
		slog.Info("the names of keys are those of the file again, which has changed", "file", f.path, "ranges", len(m.ranges))
	}
	f.names, f.set = m, false
	return m
}

// Set has keys called as m says, until the file changes.
func (f *NameFile) Set(m *NameMap) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.names, f.set = m, true
	if f.path != "" {
		// Names of the file are older than those that are set.
		f.stamp, f.looked = stampOf(f.path), time.Now()
	}
}

// stampOf tells versions of a file apart.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}
