package cli

import (
	"fmt"
	"io"
	"os"
)

// WriteFile writes a file that a flag names, which it overwrites. A failure may leave a part of
// it there.
func WriteFile(flag, path string, write func(io.Writer) error) error {
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("%s: %w", flag, err)
	}
	// Closing is part of writing: a full disk may be reported only then.
	err = write(f)
	if closing := f.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("%s %s: %w", flag, path, err)
	}
	return nil
}
