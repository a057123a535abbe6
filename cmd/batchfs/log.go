package main

import (
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"batchfs/cmd/batchfs/config"
)

func newLog(w io.Writer, o config.Log) *slog.Logger {
	var level slog.Level
	level.UnmarshalText([]byte(o.Level)) // config allows no other words
	options := &slog.HandlerOptions{Level: level}
	if o.Format == "json" {
		return slog.New(slog.NewJSONHandler(w, options))
	}
	return slog.New(slog.NewTextHandler(w, options))
}

func openLog(path string) (*os.File, error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return nil, fmt.Errorf("the log: %w", err)
	}
	return file, nil
}

// backgroundLog returns the absolute path of the log of a mount in the background: path, or the default if that is empty.
func backgroundLog(path string) (string, error) {
	if path != "" {
		return filepath.Abs(path)
	}
	state := os.Getenv("XDG_STATE_HOME")
	if state == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no directory for the log: %w; name a file with --log", err)
		}
		state = filepath.Join(home, ".local", "state")
	}
	dir := filepath.Join(state, "batchfs")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", fmt.Errorf("no place for the log: %w; name a file with --log", err)
	}
	return filepath.Join(dir, "batchfs.log"), nil
}
