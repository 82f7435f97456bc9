package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"unicode"

	"github.com/psidecar/psidecar/test/require"
)

// hostile is text that clears a screen, renames a window, hides what follows and
// turns its order around.
const hostile = "\x1b[2J\x1b]0;x\x07\u009b8m\u202e\rx"

// hostileAgent gives such names to all that it tells of.
func hostileAgent(t *testing.T) string {
	t.Helper()
	name := require.Value(json.Marshal(hostile))(t)
	tell := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Write([]byte(strings.ReplaceAll(text, `"NAME"`, string(name))))
		}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("/api/v1/heatmap", tell(`{"job":"NAME","workers":["NAME","NAME"],"blocks":[{"first":0,"last":9,"first_text":"NAME","last_text":"NAME"}],"counts":[[5],[7]],"measure":"NAME","exact":true}`))
	mux.HandleFunc("/api/v1/jobs", tell(`{"jobs":[{"job":"NAME","dialect":"NAME","nodes":[{"name":"NAME","address":"NAME","command":"NAME"}],"stragglers":["NAME"]}]}`))
	mux.HandleFunc("/api/v1/agent", tell(`{"host":"NAME","version":"NAME","cgroups":["NAME"],"counters":[{"reason":"NAME","class":"lost","events":3,"bytes":9,"help":"NAME"}]}`))
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusTeapot)
		w.Write([]byte(hostile))
	})
	s := httptest.NewServer(mux)
	t.Cleanup(s.Close)
	return s.URL
}

// Names that others choose do not work the terminal of who reads them.
func TestForeignTextDoesNotWorkTheTerminal(t *testing.T) {
	agent := hostileAgent(t)
	for _, args := range [][]string{
		{"status", "--agent", agent},
		{"status", "--agent", agent, "--json"},
		{"heatmap", "--agent", agent},
		{"heatmap", "--agent", agent, "--json"},
		{"status", "--agent", agent + "/elsewhere"},
		{"decode", hostile},
		{hostile},
		{"status", "--" + hostile},
	} {
		code, out, stderr := runTest(t, nil, args...)
		if out+stderr == "" {
			t.Errorf("%q: exit code %d, and nothing was said", args, code)
		}
		for _, r := range out + stderr {
			if unicode.In(r, unicode.Cc, unicode.Cf) && r != '\n' && r != '\t' {
				t.Errorf("%q: %U in %q", args, r, out+stderr)
				break
			}
		}
	}
}
