package agent

import (
	"bufio"
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/psidecar/psidecar/internal/page"
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

// ServeRecordings reads recordings and serves a page for them until ctx ends. If ask is not nil,
// the page also has the jobs of the agent or planner that ask gets answers from, as in
// [BesideLive]. The port is open by then: a browser that asks while files are read waits, rather
// than being refused.
func ServeRecordings(ctx context.Context, front page.Server, version string, paths []string, ask func(path string, query url.Values, v any) error) error {
	state, err := OpenRecordings(ctx, version, paths)
	if err != nil {
		return err
	}
	// The page may be sent recordings, which is the one request here that is no GET.
	front.Guard.Opens = true
	if ask == nil {
		// Open: recordings can be dropped on the page, within the bound that the state has.
		return front.Serve(ctx, page.Handler(state, page.Options{History: state.History, Open: state.Open}))
	}
	beside := &BesideLive{Recorded: state, Ask: ask}
	// One that cannot be asked is reported at the start; later failures show on the page.
	if err := beside.Ready(); err != nil {
		return err
	}
	return front.Serve(ctx, page.Handler(beside, page.Options{History: beside.History, Open: state.Open}))
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
