// Orientations that EXIF notes, in files that are whole, cut and changed.
#include "images/exif.h"

#include <gtest/gtest.h>

#include <string>

namespace steep {
namespace {

using namespace std::string_literals;

int orientation(const std::string& bytes) {
  return exif_orientation(MemorySource(std::as_bytes(std::span(bytes)), "image"));
}

/// TIFF with two entries, the second of which is the orientation.
std::string little(char value) {
  return "II*\0\x08\0\0\0\x02\0"s + "\x0f\x01\x02\0\x01\0\0\0a\0\0\0"s +
         "\x12\x01\x03\0\x01\0\0\0"s + value + "\0\0\0\0\0\0\0"s;
}
std::string big(char value) {
  return "MM\0*\0\0\0\x08\0\x02"s +
         "\x01\x0f\0\x02\0\0\0\x01"
         "a\0\0\0"s +
         "\x01\x12\0\x03\0\0\0\x01\0"s + value + "\0\0\0\0\0\0"s;
}

std::string jpeg(const std::string& tiff) {
  const std::string exif = "Exif\0\0"s + tiff;
  return "\xff\xd8\xff\xe0\0\x04JF\xff"s + "\xff\xe1\0"s + static_cast<char>(exif.size() + 2) +
         exif + "\xff\xda\0\x02"s;
}

std::string chunk(const std::string& name, const std::string& data) {
  return "\0\0\0"s + static_cast<char>(data.size()) + name + data + "crc."s;
}
std::string png(const std::string& exif) {
  return "\x89PNG\r\n\x1a\n"s + chunk("IHDR", std::string(13, 'h')) + chunk("IDAT", "pixels") +
         chunk("eXIf", exif) + chunk("IEND", "");
}

TEST(Exif, OrientationsOfBothOrdersAndFormats) {
  for (char value = 1; value <= 8; ++value) {
    for (const std::string& tiff : {little(value), big(value)}) {
      EXPECT_EQ(orientation(jpeg(tiff)), value);
      EXPECT_EQ(orientation(png(tiff)), value);
      EXPECT_EQ(orientation(png("Exif\0\0"s + tiff)), value);
    }
  }
  for (const char value : {'\0', '\x09', '\xff'}) EXPECT_EQ(orientation(jpeg(big(value))), 1);
}

TEST(Exif, WhatCannotBeReadIsNone) {
  EXPECT_EQ(orientation(""), 1);
  EXPECT_EQ(orientation("\xff\xd8\xff"), 1);
  EXPECT_EQ(orientation("\xff\xd8\xff" + std::string(100, '\xff')), 1);
  EXPECT_EQ(orientation("\xff\xd8\xff\xe1\0\0\0\0\0"s), 1);  // a length of 0
  EXPECT_EQ(orientation(png("")), 1);
  EXPECT_EQ(orientation(jpeg("II*\0\xff\xff\xff\xff"s)), 1);
  for (const std::string& whole : {jpeg(little(6)), jpeg(big(6)), png(little(6)), png(big(6))}) {
    for (size_t size = 0; size < whole.size(); ++size) orientation(whole.substr(0, size));
    for (size_t at = 0; at < whole.size(); ++at) {
      for (const char value : {'\0', '\x01', '\x7f', '\xff'}) {
        std::string changed = whole;
        changed[at] = value;
        const int found = orientation(changed);
        EXPECT_TRUE(found >= 1 && found <= 8);
      }
    }
  }
}

}  // namespace
}  // namespace steep
