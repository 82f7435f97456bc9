package cli

import (
	"fmt"
	"os"
)

// HostName returns a host's name: as its flag --host says, else its hostname.
func HostName(flag string) (string, error) {
	if flag != "" {
		return flag, nil
	}
	host, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("asking for the host's name: %w", err)
	}
	return host, nil
}
