package main

import (
	"encoding/json"
	"testing"

	"github.com/psidecar/psidecar/proxy/codec/advice"
	"github.com/psidecar/psidecar/test/require"
)

func TestSimulateCodecs(t *testing.T) {
	file := require.Capture(t, "dmlc-kv-2s2w.pcapng")
	code, stdout, stderr := runTest(t, nil, "simulate", "--codecs", "--json", file)
	if code != 0 {
		t.Fatal(stderr)
	}
	var r advice.Report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r))
	if r.Pushes == 0 || r.PushBytes == 0 || r.PullBytes == 0 || len(r.Codecs) != len(advice.Candidates()) || r.Codecs[0].Saved <= 0 {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{"--codecs"}, {"--codecs", "a", "b"}, {"--codecs", "--proxy", "x", file}, {"--codecs", "--proxy", "x", "--seconds", "0"}, {}} {
		if code, _, stderr := runTest(t, nil, append([]string{"simulate"}, args...)...); code != 2 {
			t.Errorf("simulate %v: exit code %d, %s", args, code, stderr)
		}
	}
}
