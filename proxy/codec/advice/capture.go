package advice

import (
	"fmt"
	"os"
	"strings"

	"github.com/psidecar/psidecar/internal/wire/pslite"
	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
)

// captureState bounds what each candidate keeps, in bytes.
const captureState = 256 << 20

// ReadCapture tries the codecs on a packet capture that has values (tcpdump -w, without a
// short snap length). It reads the file once.
func ReadCapture(path string) (Report, error) {
	file, err := os.Open(path)
	if err != nil {
		return Report{}, fmt.Errorf("opening the capture: %w", err)
	}
	defer file.Close()
	study, err := NewStudy(captureState)
	if err != nil {
		return Report{}, err
	}
	var frames [][]byte
	totals, err := capture.Read(file, capture.Options{Data: true}, func(m *capture.Message) error {
		if len(m.Data) == 0 || !m.Meta.Data() {
			return nil
		}
		// The capture gives decoded metas; the codec wants frames. Appending restores
		// the very bytes.
		frames = append(frames[:0], m.Meta.Append(nil, m.Dialect))
		frames = append(frames, m.Data...)
		// A worker's connection is named without its port, which changes when it
		// reconnects.
		return study.Message(m.Flow.Src.Addr().String()+" "+m.From+" "+m.Flow.Dst.String(), nodeNamed(m.From), frames)
	})
	if err != nil {
		return Report{}, fmt.Errorf("reading %s: %w", path, err)
	}
	report := study.Report()
	if report.PushBytes+report.PullBytes == 0 {
		return report, fmt.Errorf("%s has %d messages, but none with keys and values", path, totals.Messages)
	}
	return report, nil
}

// nodeNamed returns the id of a node by its name, or some worker's if that is
// unknown: the residual of a node's pushes is kept by its connection, too.
func nodeNamed(name string) int32 {
	var rank int
	switch {
	case strings.HasPrefix(name, "server"):
		if _, err := fmt.Sscanf(name, "server%d", &rank); err == nil {
			return pslite.ServerID(rank)
		}
	case strings.HasPrefix(name, "worker"):
		if _, err := fmt.Sscanf(name, "worker%d", &rank); err == nil {
			return pslite.WorkerID(rank)
		}
	}
	return pslite.WorkerID(0)
}
