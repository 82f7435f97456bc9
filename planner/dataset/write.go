package dataset

import (
	"bufio"
	"io"
	"strconv"
)

// A Writer writes libsvm text. Errors are sticky, so only the error of [Writer.Flush] need be
// checked.
type Writer struct {
	w    *bufio.Writer
	line []byte
}

// NewWriter returns a buffered writer of libsvm text to w. Flush must be called at the end.
func NewWriter(w io.Writer) *Writer {
	return &Writer{w: bufio.NewWriterSize(w, 256<<10)}
}

// Row writes one row; ids and values have the same length. Numbers are written with the fewest
// digits that read back as the same float32.
func (w *Writer) Row(label float32, ids []uint64, values []float32) error {
	line := strconv.AppendFloat(w.line[:0], float64(label), 'g', -1, 32)
	for i, id := range ids {
		line = strconv.AppendUint(append(line, ' '), id, 10)
		line = strconv.AppendFloat(append(line, ':'), float64(values[i]), 'g', -1, 32)
	}
	w.line = append(line, '\n')
	_, err := w.w.Write(w.line)
	return err
}

// Text writes a row unchanged from another file (see [Rows.Text]).
func (w *Writer) Text(row []byte) error {
	if _, err := w.w.Write(row); err != nil {
		return err
	}
	return w.w.WriteByte('\n')
}

// Flush writes the buffer.
func (w *Writer) Flush() error { return w.w.Flush() }
