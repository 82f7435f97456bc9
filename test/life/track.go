package life

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"
)

// A track is what the workers of a job have reported about their steps. Its methods may be
// called concurrently.
type track struct {
	patience *patience
	folder   string // for what nodes say

	mu      sync.Mutex // guards the rest
	workers []mark
	files   []*os.File
}

// mark is a worker's last step, and when it was reported.
type mark struct {
	step, of int
	at       time.Time
	spare    time.Duration // on the clock of patience
}

// stepLine matches what psjob and the C++ peer print about their steps.
var stepLine = regexp.MustCompile(`(?:step=| round )(\d+) of[= ](\d+)`)

// newTrack returns a track on which all workers have just begun. folder is the beginning of the
// names of log files.
func newTrack(p *patience, workers int, folder string) *track {
	x := &track{patience: p, folder: folder, workers: make([]mark, workers)}
	for i := range x.workers {
		x.workers[i] = mark{at: time.Now(), spare: p.now()}
	}
	return x
}

// log returns the writer of what a node prints: it is kept in a file, and a worker's steps are
// read.
func (x *track) log(role string, index int) io.Writer {
	file, err := os.Create(x.folder + "-" + role + "-" + strconv.Itoa(index) + ".log")
	if err != nil {
		return io.Discard // it is in the node's buffer too
	}
	x.mu.Lock()
	x.files = append(x.files, file)
	x.mu.Unlock()
	if role != "worker" {
		return file
	}
	return io.MultiWriter(file, &stepReader{track: x, worker: index})
}

// close closes the files, and removes them if nobody needs them.
func (x *track) close(remove bool) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, f := range x.files {
		f.Close()
		if remove {
			os.Remove(f.Name())
		}
	}
}

// stepReader splits what a worker prints into lines, and notes its steps.
type stepReader struct {
	track  *track
	worker int
	rest   []byte
}

// Write implements [io.Writer]. A line may come in several pieces.
func (r *stepReader) Write(p []byte) (int, error) {
	r.rest = append(r.rest, p...)
	for {
		line, rest, whole := bytes.Cut(r.rest, []byte("\n"))
		if !whole {
			return len(p), nil
		}
		r.rest = rest
		m := stepLine.FindSubmatch(line)
		if m == nil {
			continue
		}
		step, _ := strconv.Atoi(string(m[1]))
		of, _ := strconv.Atoi(string(m[2]))
		r.track.mu.Lock()
		r.track.workers[r.worker] = mark{step, of, time.Now(), r.track.patience.now()}
		r.track.mu.Unlock()
	}
}

// begun reports whether every worker has made a step, and so all nodes are registered.
func (x *track) begun() bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, m := range x.workers {
		if m.step == 0 {
			return false
		}
	}
	return true
}

// waiting returns the mark of the worker that has been silent for longest among those that have
// steps to make. If none has, it is that of the worker that reported last.
func (x *track) waiting() (worker int, m mark) {
	x.mu.Lock()
	defer x.mu.Unlock()
	worker = -1
	for i, w := range x.workers {
		if (w.of == 0 || w.step < w.of) && (worker < 0 || w.at.Before(m.at)) {
			worker, m = i, w
		}
	}
	if worker >= 0 {
		return worker, m
	}
	for i, w := range x.workers {
		if worker < 0 || w.at.After(m.at) {
			worker, m = i, w
		}
	}
	return worker, m
}

// last returns the newest mark of any worker.
func (x *track) last() (m mark) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, w := range x.workers {
		if w.at.After(m.at) {
			m = w
		}
	}
	return m
}
