package names

import (
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"
)

// A File is a map that is read again when its file changes. The nil file names
// nothing.
type File struct {
	path string

	mu     sync.Mutex
	names  *Map
	stamp  string
	looked time.Time
}

// Open reads a file.
func Open(path string) (*File, error) {
	f := &File{path: path, stamp: stampOf(path), looked: time.Now()}
	var err error
	f.names, err = read(path)
	return f, err
}

func read(path string) (*Map, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	m, err := Parse(path, text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// lookEvery is how often the file is looked at, at most.
const lookEvery = time.Second

// Map returns what the file says now; what it said last where something is wrong
// with it, which is logged.
func (f *File) Map() *Map {
	if f == nil {
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
	f.stamp = now
	m, err := read(f.path)
	if err != nil {
		slog.Warn("the names of keys stay as they were", "error", err)
		return f.names
	}
	f.names = m
	return m
}

// stampOf tells versions of a file apart.
func stampOf(path string) string {
	info, err := os.Stat(path)
	if err != nil {
		return err.Error()
	}
	return fmt.Sprint(info.ModTime().UnixNano(), info.Size())
}
