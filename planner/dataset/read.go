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
	// chunkSize is how much text one goroutine parses at a time.
	chunkSize = 1 << 20
	// maxLine bounds the memory for a line: a longer one is not training data.
	maxLine = 256 << 20
)

// Options configure reading. The zero value is ready to use.
type Options struct {
	// Workers is the number of goroutines that parse; 0 means one per core.
	Workers int
	// Progress, if not nil, is called after each batch with the fraction of the file that has been
	// read, from 0 to 1.
	Progress func(done float64)
}

// ErrEmpty is wrapped by the error for a file without a single row.
var ErrEmpty = errors.New("no rows: the file is empty or has only blank lines and comments")

// ReadFile reads a libsvm or libffm file, plain or compressed (gzip, bzip2, xz, zstd), and calls
// each with its rows, batch by batch in the file's order, from one goroutine. The rows are valid
// until each returns. Memory is bounded by a few chunks of 1 MiB per worker, unless a line is
// longer.
//
// A malformed file gives a [LineError] with the file's name and the line. An error of each ends
// reading and is returned unchanged.
func ReadFile(ctx context.Context, path string, o Options, each func(*Rows) error) error {
	f, err := openCounting(path)
	if err != nil {
		return err
	}
	defer f.Close()
	// The fraction is of the compressed file, since the size of the text is not known before its
	// end.
	if progress := o.Progress; progress != nil {
		next := each
		each = func(rows *Rows) error {
			progress(f.done())
			return next(rows)
		}
	}
	return Read(ctx, f, path, o, each)
}

// Read is [ReadFile] for an open stream. name is used in errors, and its suffix may name a
// compression. If it fails or ctx ends, Read returns only after a call of r.Read in progress has
// returned.
func Read(ctx context.Context, r io.Reader, name string, o Options, each func(*Rows) error) error {
	plain, err := decompress(r, name)
	if err != nil {
		return err
	}
	workers := o.Workers
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	// One goroutine reads, several parse, one calls each. The first error ends all of them through
	// ctx.
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
	// An empty file is most likely the wrong one.
	if p.empty {
		return fmt.Errorf("%s: %w", name, ErrEmpty)
	}
	return nil
}

// Load reads a whole file into memory: 12 bytes per feature, 16 for libffm, and 28 per row.
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

// A pipeline cuts a text into chunks of whole lines, parses them on several goroutines and delivers
// them in order. A fixed number of jobs circulates from free through toParse and inOrder back to
// free, which bounds the memory. All channels have room for all jobs, so no send blocks.
//
// The same job is sent on toParse and on inOrder: one of the parsers takes it from the former, and
// deliver, which reads the latter, waits until it has been parsed.
type pipeline struct {
	name    string
	empty   bool // no row has been delivered
	free    chan *job
	toParse chan *job
	inOrder chan *job
}

// A job is one chunk and its rows. It belongs to cut until it is sent, to a parser until parsed
// receives a value, and then to deliver.
type job struct {
	text   []byte // whole lines
	line   int    // the file's line that text starts with
	rows   Rows
	err    *LineError
	parsed chan struct{} // receives one value when rows and err are set
}

// newPipeline returns a pipeline with two jobs per worker: one to parse, one that waits to be
// delivered.
func newPipeline(name string, workers int) *pipeline {
	jobs := 2*workers + 2
	p := &pipeline{name: name, empty: true, free: make(chan *job, jobs), toParse: make(chan *job, jobs), inOrder: make(chan *job, jobs)}
	for range jobs {
		p.free <- &job{parsed: make(chan struct{}, 1)}
	}
	return p
}

// cut reads the text and sends chunks of whole lines.
func (p *pipeline) cut(ctx context.Context, r io.Reader) error {
	defer close(p.toParse)
	defer close(p.inOrder)
	// The beginning of a line whose end is in the next chunk.
	var rest []byte
	for line := 1; ; {
		var j *job
		select {
		case j = <-p.free:
		case <-ctx.Done():
			return ctx.Err()
		}
		// The buffer that this job had before is reused.
		text, last, err := fill(r, append(j.text[:0], rest...))
		if err != nil {
			return fmt.Errorf("reading %s, after line %d: %w", p.name, line-1+bytes.Count(text, []byte{'\n'}), cutShort(err))
		}
		if text == nil {
			return &LineError{File: p.name, Line: line, Err: fmt.Errorf("longer than %d MiB: not libsvm text", maxLine>>20)}
		}
		end := bytes.LastIndexByte(text, '\n') + 1
		// Copied, because the job's buffer is parsed in parallel from here on.
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

// fill appends to text until it has chunkSize bytes with a line end among the new ones, or the
// stream ends. It adds a line end that is missing at the end of the stream, on which the parser
// relies. It returns nil if a line is longer than maxLine.
func fill(r io.Reader, text []byte) (_ []byte, last bool, err error) {
	for searched := 0; ; {
		if len(text) >= chunkSize {
			// What was searched before has no line end, or it would have returned then.
			if bytes.IndexByte(text[searched:], '\n') >= 0 {
				return text, false, nil
			}
			searched = len(text)
			if len(text) > maxLine {
				return nil, false, nil
			}
		}
		// Grow for a long line; otherwise the buffer has its full size from the first use on.
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

// parse parses chunks until there are no more.
func (p *pipeline) parse(ctx context.Context) error {
	var parser lineParser
	for j := range p.toParse {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		j.rows.reset()
		j.err = parser.chunk(j.text, j.line, &j.rows)
		// The channel has room for one, so a parser never waits for deliver.
		j.parsed <- struct{}{}
	}
	return nil
}

// deliver calls each with the rows of the chunks, in order. Only here is it seen whether two chunks
// are of different formats.
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
			// A parser checks within its chunk only.
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
		// each has returned, so the rows may be overwritten.
		p.free <- j
	}
	return ctx.Err()
}
