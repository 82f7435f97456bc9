package client

import (
	"errors"
	"strings"
	"testing"
)

// Errors speak of the flags that were given, not of the interface's parameters.
func TestErrorsSayFlags(t *testing.T) {
	query := map[string][]string{"measure": {"bites"}, "job": nil}
	got := asFlags(`measure="bites": use one of [accesses bytes], or name one with job=: h:1; n="x" stays`, query)
	if want := `--measure "bites": use one of [accesses bytes], or name one with --job: h:1; n="x" stays`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// What a port of another protocol says before it is asked is not HTTP either.
func TestNotHTTPBeforeItIsAsked(t *testing.T) {
	early := errors.New(`Get "http://127.0.0.1:9811/api/v1/jobs": readLoopPeekFailLocked: <nil>`) // as net/http has it
	if text := notHTTP("127.0.0.1:9811", early); !strings.Contains(text, "does not speak HTTP") {
		t.Errorf("got %q", text)
	}
}
