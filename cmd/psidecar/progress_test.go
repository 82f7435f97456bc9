package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/psidecar/psidecar/test/require"
)

// terminal returns the two ends of a pseudo-terminal.
func terminal(t *testing.T) (screen, file *os.File) {
	t.Helper()
	screen, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		require.Missing(t, "no pseudo-terminals: %v", err)
	}
	t.Cleanup(func() { screen.Close() })
	fd := int(screen.Fd())
	require.NoError(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	number := require.Value(unix.IoctlGetInt(fd, unix.TIOCGPTN))(t)
	file = require.Value(os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|unix.O_NOCTTY, 0))(t)
	return screen, file
}

// TestProgressOnATerminal sees a bar for each algorithm that takes long enough,
// on standard error, its line cleared at the end, and nothing but the report on
// standard output.
func TestProgressOnATerminal(t *testing.T) {
	data := topicData(t, 80, 4)
	screen, file := terminal(t)
	shown := make(chan string)
	go func() {
		text, _ := io.ReadAll(screen) // ends with an error when the other end is closed
		shown <- string(text)
	}()
	var stdout bytes.Buffer
	code := run(t.Context(), env{
		args:   []string{"partition", "--input", data, "-k", "4", "--all", "--json"},
		stdin:  strings.NewReader(""),
		stdout: &stdout,
		stderr: file,
		lookup: func(string) (string, bool) { return "", false },
	})
	require.NoError(t, file.Close())
	text := <-shown
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, text)
	}
	for _, want := range []string{"tsh1", "tsh2", "best", "%"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q on the terminal: %q", want, text)
		}
	}
	if last := text[strings.LastIndexByte(strings.TrimRight(text, "\r"), '\r')+1:]; strings.Trim(last, " \r") != "" {
		t.Errorf("the last line that is left on the terminal is %q", last)
	}
	if strings.ContainsAny(stdout.String(), "\r\x1b") {
		t.Errorf("standard output has more than the report: %q", stdout.String())
	}
}
