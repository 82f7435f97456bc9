package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/internal/wire/pslite/capture"
	"github.com/psidecar/psidecar/test/require"
)

func TestDecodeJSON(t *testing.T) {
	code, out, stderr := runTest(t, nil, "decode", "--json", require.Capture(t, "dmlc-kv-2s2w.pcapng"))
	if code != 0 || stderr != "" {
		t.Fatalf("exit code %d: %s", code, stderr)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	kinds := map[string]int{}
	var bytes uint64
	for i, text := range lines[:len(lines)-1] {
		var m capture.Listed
		d := json.NewDecoder(strings.NewReader(text))
		d.DisallowUnknownFields()
		if err := d.Decode(&m); err != nil {
			t.Fatalf("line %d: %v", i+1, err)
		}
		if m.Dialect != "dmlc" || m.Time.Year() < 2020 || m.Connection == "" || m.From == "" || m.To == "" {
			t.Errorf("line %d: %s", i+1, text)
		}
		kinds[m.Kind]++
		bytes += m.Bytes
	}
	if kinds["push"] == 0 || kinds["push"] != kinds["push-answer"] || kinds["pull"] != kinds["pull-answer"] ||
		kinds["pushpull"] != kinds["pushpull-answer"] || kinds["app"] != kinds["app-answer"] || kinds["app"] == 0 || kinds["ADD_NODE"] != 8 {
		t.Errorf("kinds %v", kinds)
	}
	last := lines[len(lines)-1]
	if want := `{"messages":153,"frames":371,"body_bytes":210770,"unsynced_bytes":0,"connections":50}`; last != want {
		t.Errorf("got %s\nwant %s", last, want)
	}
	if bytes == 0 || bytes >= 210770 { // the totals hold the commands as well
		t.Errorf("%d bytes in messages", bytes)
	}
}

func TestDecodeText(t *testing.T) {
	code, out, _ := runTest(t, nil, "decode", require.Capture(t, "byteps-kv-2s2w.pcapng"))
	if code != 0 || !strings.Contains(out, "worker1") || !strings.HasSuffix(out, "129 messages, 403 frames with 80545 bytes, 0 bytes unsynced, 50 connections\n") {
		t.Errorf("exit code %d:\n%s", code, out)
	}
}

func TestDecodeRefuses(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	require.NoError(t, os.WriteFile(text, []byte("not a capture\n"), 0o600))
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"no file named", nil, 2, "want CAPTURE"},
		{"no such file", []string{filepath.Join(dir, "none")}, 1, "no such file"},
		{"text", []string{text}, 1, "no pcap or pcapng"},
		{"a folder", []string{dir}, 1, "is a directory"},
		{"empty standard input", []string{"-"}, 1, "only 0 bytes"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, _, stderr := runTest(t, nil, append([]string{"decode"}, tc.args...)...)
			if code != tc.code || !strings.Contains(stderr, tc.want) {
				t.Errorf("exit code %d (want %d), stderr %q (want %q in it)", code, tc.code, stderr, tc.want)
			}
		})
	}
	whole := require.Value(os.ReadFile(require.Capture(t, "dmlc-kv-2s2w.pcapng")))(t)
	cut := filepath.Join(dir, "cut.pcapng")
	require.NoError(t, os.WriteFile(cut, whole[:len(whole)/2+1], 0o600))
	code, out, stderr := runTest(t, nil, "decode", "--json", cut)
	if code != 1 || !strings.Contains(stderr, "truncated") || strings.Count(out, "\n") < 50 {
		t.Errorf("half a file: exit code %d, %d lines, %s", code, strings.Count(out, "\n"), stderr)
	}
}
