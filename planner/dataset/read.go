package dataset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"

	"golang.org/x/sync/errgroup"
)

const (
	chunkSize = 1 << 20   // text parsed at a time by one goroutine
	maxLine   = 256 << 20 // a longer line is no training data
)

// Options of reading. The zero value is ready to use.
type Options struct {
	// Workers is the number of goroutines that parse; 0 is one a core.
	Workers int
	// Progress, where not nil, is called after each batch with the part of the
	// file that has been read, from 0 to 1.
	Progress func(done float64)
}

// ErrEmpty is wrapped by the error for a file without a single row.
var ErrEmpty = errors.New("no rows: the file is empty or has only blank lines and comments")

// ReadFile reads a libsvm or libffm file, plain or compressed (gzip, bzip2,
// xz, zstd), and calls each with its rows, batch by batch in the file's order,
// from one goroutine. The rows are valid until each returns. Memory is bounded
// by a few chunks of 1 MiB a worker, unless a line is longer.
//
// A fault of the file comes back as a [LineError] that names file and line; an
// error of each comes back as it is.
func ReadFile(ctx context.Context, path string, o Options, each func(*Rows) error) error {
	f, err := openCounting(path)
	if err != nil {
		return err
	}
	defer f.Close()
	if progress := o.Progress; progress != nil {
		next := each
		each = func(rows *Rows) error {
			progress(f.done())
			return next(rows)
		}
	}
	return Read(ctx, f, path, o, each)
}

// Read is [ReadFile] for an open stream; name stands in errors, and its suffix
// may promise a compression. Read returns after r's current Read call does.
func Read(ctx context.Context, r io.Reader, name string, o Options, each func(*Rows) error) error {
	plain, err := decompress(r, name)
	if err != nil {
		return err
	}
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	p := newPipeline(name, workers)
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.cut(ctx, plain) })
	for range workers {
		group.Go(func() error { return p.parse(ctx) })
	}
	group.Go(func() error { return p.deliver(ctx, each) })
	if err := group.Wait(); err != nil {
		return err
	}
	if p.empty {
		return fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	return nil
}

// Load reads a whole file into memory: 12 bytes a feature (16 for libffm), and
// 28 a row.
func Load(ctx context.Context, path string, o Options) (*Rows, error) {
	all := new(Rows)
	err := ReadFile(ctx, path, o, func(rows *Rows) error {
		all.appendRows(rows)
		return nil
	})
	if err != nil {
		return nil, err
	}
	return all, nil
}

// A pipeline cuts a text into chunks of whole lines, parses them on several
// goroutines and hands them on in order. Chunks go round between a fixed
// number of jobs, which is what bounds the memory.
type pipeline struct {
	name    string
	empty   bool // no row has been delivered
	free    chan *job
	toParse chan *job
	inOrder chan *job
}

// A job is one chunk on its way.
type job struct {
	text   []byte // whole lines
	line   int    // the file's line that text starts with
	rows   Rows
	err    *LineError
	parsed chan struct{} // receives one value when rows and err are set
}

func newPipeline(name string, workers int) *pipeline {
	jobs := 2*workers + 2
	p := &pipeline{name: name, empty: true, free: make(chan *job, jobs), toParse: make(chan *job, jobs), inOrder: make(chan *job, jobs)}
	for range jobs {
		p.free <- &job{parsed: make(chan struct{}, 1)}
	}
	return p
}

// cut reads the text and sends chunks that end with a line end.
func (p *pipeline) cut(ctx context.Context, r io.Reader) error {
	defer close(p.toParse)
	defer close(p.inOrder)
	var rest []byte // begins a line that the last chunk did not hold the end of
	for line := 1; ; {
		var j *job
		select {
		case j = <-p.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		text, last, err := fill(r, append(j.text[:0], rest...))
		if err != nil {
			return fmt.Errorf("reading %s, after line %d: %w", p.name, line-1+bytes.Count(text, []byte{'\n'}), cutShort(err))
		}
		if text == nil {
			return &LineError{File: p.name, Line: line, Err: fmt.Errorf("longer than %d MiB: not libsvm text", maxLine>>20)}
		}
		end := bytes.LastIndexByte(text, '\n') + 1
		rest = append(rest[:0], text[end:]...)
		j.text, j.line = text[:end], line
		line += bytes.Count(j.text, []byte{'\n'})
		p.toParse <- j
		p.inOrder <- j
		if last {
			return nil
		}
	}
}

// fill appends to text until it holds chunkSize bytes with a line end among
// them, or the stream ends, which is when a missing last line end is added.
// The text is nil where a line exceeds maxLine.
func fill(r io.Reader, text []byte) (_ []byte, last bool, err error) {
	for searched := 0; ; {
		if len(text) >= chunkSize {
			if bytes.IndexByte(text[searched:], '\n') >= 0 {
				return text, false, nil
			}
			searched = len(text)
			if len(text) > maxLine {
				return nil, false, nil
			}
		}
		if free := cap(text) - len(text); free < chunkSize/4 {
			text = append(make([]byte, 0, max(chunkSize+chunkSize/4, 2*cap(text))), text...)
		}
		n, err := r.Read(text[len(text):cap(text)])
		text = text[:len(text)+n]
		if err == io.EOF {
			if len(text) > 0 && text[len(text)-1] != '\n' {
				text = append(text, '\n')
			}
			return text, true, nil
		}
		if err != nil {
			return text, false, err
		}
	}
}

func (p *pipeline) parse(ctx context.Context) error {
	var parser lineParser
	for j := range p.toParse {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		j.rows.reset()
		j.err = parser.chunk(j.text, j.line, &j.rows)
		j.parsed <- struct{}{}
	}
	return nil
}

// deliver calls each with the chunks' rows, in order.
func (p *pipeline) deliver(ctx context.Context, each func(*Rows) error) error {
	features, ffm := false, false
	for j := range p.inOrder {
		select {
		case <-j.parsed:
		case <-ctx.Done():
			return ctx.Err()
		}
		if j.err != nil {
			j.err.File = p.name
			return j.err
		}
		if len(j.rows.ID) > 0 {
			if features && ffm != (len(j.rows.Field) > 0) {
				return &LineError{File: p.name, Line: j.rows.Line[0], Err: errMixed}
			}
			features, ffm = true, len(j.rows.Field) > 0
		}
		if j.rows.Len() > 0 {
			p.empty = false
			if err := each(&j.rows); err != nil {
				return err
			}
		}
		p.free <- j
	}
	return ctx.Err()
}
