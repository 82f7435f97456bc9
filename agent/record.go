package agent

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"time"

	"github.com/psidecar/psidecar/internal/recording"
)

// createRecording creates a file; it overwrites one that exists only if force is set.
func createRecording(path string, force bool) (*os.File, error) {
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !force {
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o666)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("--out %s: the file exists; name another one, or overwrite it with --force", path)
	}
	if err != nil {
		return nil, fmt.Errorf("--out: %w", err)
	}
	return file, nil
}

// Record watches until ctx ends and writes the uses of keys to a file, which must not exist
// unless force is set. Errors name the flag --out. opts.Uses is replaced.
//
// It ends in order: the agent first, which hands over what the kernel still holds, then the
// writer, and the file last.
func Record(ctx context.Context, opts Options, path string, force bool) (totals recording.Totals, err error) {
	file, err := createRecording(path, force)
	if err != nil {
		return totals, err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w, err := recording.NewWriter(file, recording.Header{
		Version: opts.Version, Host: opts.Host, StartedNanos: time.Now().UnixNano(), SampledOneIn: opts.Sampling.OneIn,
	})
	if err != nil {
		return totals, err
	}
	// The header is written before the agent exists, so that an unwritable file is reported at
	// once.
	recorder := NewRecorder(opts.Jobs)
	opts.Uses = recorder.Use
	a, err := New(opts)
	if err != nil {
		return totals, err
	}
	slog.Info("recording", "file", path)
	// Two contexts, since the writer must outlive the agent: uses still arrive while the agent
	// ends.
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watched, watching := make(chan error, 1), context.WithoutCancel(ctx)
	writing, stop := context.WithCancel(watching)
	go func() {
		watched <- a.Run(ctx) // hands over what the kernel still holds when ctx ends
		stop()
	}()
	totals, err = recorder.Run(writing, w)
	cancel() // if writing failed, there is no use in watching
	return totals, errors.Join(<-watched, err)
}

// ReadRecording returns a summary of a recording. It reads all of it. Errors name the flag
// --info.
func ReadRecording(path string) (*recording.Summary, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("--info: %w", err)
	}
	defer file.Close()
	summary, err := recording.Summarize(bufio.NewReaderSize(file, 1<<20))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return &summary, nil
}
