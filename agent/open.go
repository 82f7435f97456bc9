package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// openedBytes bounds a recording that is opened through the page: the browser sends it in one
// piece, which it holds in memory.
const openedBytes = 1 << 30

// OpenRecordings reads recordings. Their jobs are named after the files: by base name, or by
// the whole path where two files have the same base name. It blocks until all are read, or ctx
// ends between two of them.
func OpenRecordings(ctx context.Context, version string, paths []string) (*Recorded, error) {
	state := &Recorded{Version: version, Takes: openedBytes}
	short := map[string]int{}
	for _, path := range paths {
		short[nameOfFile(path)]++
	}
	for _, path := range paths {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		name := nameOfFile(path)
		if short[name] > 1 {
			name = path
		}
		if err := openRecording(state, name, path); err != nil {
			return nil, err
		}
	}
	return state, nil
}

// nameOfFile returns the base name without the extension.
func nameOfFile(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

// openRecording reads one file into state.
func openRecording(state *Recorded, name, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("opening a recording: %w", err)
	}
	defer f.Close()
	if _, err := state.Open(name, bufio.NewReaderSize(f, 1<<20)); err != nil {
		return fmt.Errorf("opening %s: %w", path, err)
	}
	return nil
}
