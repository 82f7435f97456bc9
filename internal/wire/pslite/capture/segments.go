package capture

import (
	"errors"
	"io"
	"time"
)

// Segment is one TCP segment of a recording. It is reused: the callback must copy the
// parts that it keeps.
type Segment struct {
	Time     time.Time
	Flow     Flow
	Seq, Ack uint32
	SYN, FIN bool
	RST, ACK bool
	Payload  []byte // valid during the call
	Missing  int    // bytes of the payload behind Payload that were not recorded
}

// Segments reads a pcap or pcapng file and hands over its TCP segments, over IPv4 or
// IPv6, in the file's order, which is that of the capture and not of the streams:
// segments may be missing, repeated or out of order. It returns how many packets it
// skipped because they were something else. An error of handle ends it; other errors
// are of type [*Error].
func Segments(r io.Reader, handle func(*Segment) error) (skipped uint64, err error) {
	in := &countingReader{r: r}
	next, err := openCapture(in)
	if err != nil {
		return 0, &Error{in.n, 0, err}
	}
	var s Segment
	for packets := 0; ; packets++ {
		p, err := next()
		if err == io.EOF {
			return skipped, nil
		}
		if err != nil {
			if errors.Is(err, io.ErrUnexpectedEOF) {
				err = errors.New("the file ends inside a packet: it was truncated")
			}
			return skipped, &Error{in.n, packets, err}
		}
		if !parseSegment(&s, p.link, p.data) {
			skipped++
			continue
		}
		s.Time = p.time
		if err := handle(&s); err != nil {
			return skipped, err
		}
	}
}

// countingReader counts the bytes read, for errors.
type countingReader struct {
	r io.Reader
	n int64
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	return n, err
}
