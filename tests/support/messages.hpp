#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "gatefold/distributed/processes.hpp"

namespace gatefold::support {

/// Message `number` from one rank to another in a round. Both sides can compute its contents. Some messages are empty,
/// some long.
struct Letter {
  int from, to, round, number;

  std::uint32_t mixed(std::uint32_t i) const {
    std::uint32_t h = i * 2654435761u + std::uint32_t(((from * 8 + to) * 64 + round) * 16 + number) * 2246822519u;
    h = (h ^ (h >> 15)) * 3266489917u;
    return h ^ (h >> 13);
  }
  std::size_t bytes() const {
    constexpr std::size_t longest[] = {
        0, 1, 100, 5000, 300000};  // MPI does not send messages of the last length before the receiver is ready
    return mixed(0) % (longest[mixed(1) % 5] + 1);
  }
  std::byte at(std::size_t i) const { return std::byte(mixed(std::uint32_t(i) + 2) & 255); }
  std::vector<std::byte> text() const {
    std::vector<std::byte> text(bytes());
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = at(i);
    return text;
  }
};

/// The mail of one rank in a round: the letters that it sends, and buffers for the letters that it receives.
struct Mail {
  std::vector<Letter> sent, got;
  std::vector<std::vector<std::byte>> sent_texts, got_texts;

  void send(Letter letter) {
    sent.push_back(letter);
    sent_texts.push_back(letter.text());
  }
  void get(Letter letter) {
    got.push_back(letter);
    got_texts.emplace_back(letter.bytes());
  }
  std::vector<dist::Outgoing> outgoing() const {
    std::vector<dist::Outgoing> list;
    for (std::size_t i = 0; i < sent.size(); ++i)
      list.push_back({sent[i].to, sent_texts[i].data(), sent_texts[i].size()});
    return list;
  }
  std::vector<dist::Incoming> incoming() {
    std::vector<dist::Incoming> list;
    for (std::size_t i = 0; i < got.size(); ++i)
      list.push_back({got[i].from, got_texts[i].data(), got_texts[i].size()});
    return list;
  }
  bool right() const {
    for (std::size_t i = 0; i < got.size(); ++i)
      if (got_texts[i] != got[i].text()) return false;
    return true;
  }
};

}  // namespace gatefold::support
