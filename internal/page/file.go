package page

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A NameFile is a NameMap that is read again when its file changes. The nil NameFile names
// nothing. It is safe for concurrent use.
type NameFile struct {
	path string

	mu     sync.Mutex // guards what follows
	names  *NameMap
	stamp  string    // of the version of the file that was read last
	looked time.Time // when the file was last checked
}

// OpenNames reads a file of names. With an empty path nothing has a name.
func OpenNames(path string) (*NameFile, error) {
	if path == "" {
		return nil, nil
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
	m, err := ParseNames(text)
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
	if f == nil || f.path == "" { // the zero value has no file, and no names
		return nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if time.Since(f.looked) < lookEvery {
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
	f.names = m
	return m
}

// stampOf returns a text that differs between versions of a file: time and size.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}
