package page

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"path/filepath"
	"strings"
	"time"
)

// recordingsPath is where recordings are posted.
const recordingsPath = "/api/v1/recordings"

// openPatience bounds the time for sending and reading a recording.
const openPatience = 10 * time.Minute

// Opened is the answer of POST /api/v1/recordings?name=FILE, whose body is a recording.
type Opened struct {
	Jobs []string `json:"jobs"` // the jobs in it
}

// readRecording reads the recording in a request's body, in a stream. The server's ordinary
// deadlines are extended for it.
func (s server) readRecording(read func(string, io.Reader) ([]string, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		most := s.state.Agent().RecordingBytes
		tooLong := badRequest{http.StatusRequestEntityTooLarge, fmt.Sprintf("the file exceeds the limit of %d MiB: pass it to psidecar show as an argument", most>>20)}
		// Refused before it is sent, if the client says its size.
		if r.ContentLength > most {
			fail(w, tooLong)
			return
		}
		late := http.NewResponseController(w)
		for _, extend := range []func(time.Time) error{late.SetReadDeadline, late.SetWriteDeadline} {
			if err := extend(time.Now().Add(openPatience)); err != nil && !errors.Is(err, http.ErrNotSupported) {
				slog.Debug("extending the deadline for a recording", "error", err)
			}
		}
		name := nameOfRecording(r.URL.Query().Get("name"))
		jobs, err := read(name, http.MaxBytesReader(w, r.Body, most))
		var long *http.MaxBytesError
		switch {
		// The reader's error may be wrapped in one about the recording.
		case errors.As(err, &long):
			fail(w, tooLong)
		case err != nil:
			fail(w, badRequest{http.StatusBadRequest, name + ": " + err.Error()})
		default:
			writeJSON(w, http.StatusOK, Opened{jobs})
		}
	}
}

// nameOfRecording returns the name of a recording from the name of its file, without control
// characters and of bounded length: the client chooses it, and it is shown to others.
func nameOfRecording(file string) string {
	name := filepath.Base(file)
	name = strings.TrimSuffix(name, filepath.Ext(name))
	name = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, name)
	if runes := []rune(name); len(runes) > 80 {
		name = string(runes[:80])
	}
	if name == "" || name == "." || name == "/" {
		return "recording"
	}
	return name
}
