package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

func TestShowSaysWhatItCannotOpen(t *testing.T) {
	for args, want := range map[string]string{"show /nowhere.psr --http 127.0.0.1:0": "/nowhere.psr", "show /etc/passwd --http 127.0.0.1:0": "opening /etc/passwd: not a psidecar recording"} {
		var out, errs bytes.Buffer
		code := run(t.Context(), env{args: strings.Fields(args), stdin: strings.NewReader(""), stdout: &out, stderr: &errs, lookup: os.LookupEnv})
		if code == 0 || !strings.Contains(errs.String(), want) {
			t.Errorf("%s: exit code %d, %s", args, code, &errs)
		}
	}
}
