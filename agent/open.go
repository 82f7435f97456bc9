package agent

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// openedBytes is how long a recording may be that is opened through the page: it
// comes in one piece, and a browser holds it.
const openedBytes = 1 << 30

// OpenRecordings reads all files. Jobs are named after their files, in full where
// two have one name.
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

func nameOfFile(path string) string {
	return strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
}

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
